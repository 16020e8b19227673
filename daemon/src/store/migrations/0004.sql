-- Limits without a value are "unlimited" instead of 0. A burst of 0 was the default burst.

UPDATE pools SET settings = json_set(settings, '$.aging_ms', 'unlimited') WHERE json_extract(settings, '$.aging_ms') = 0;
UPDATE pools SET settings = json_set(settings, '$.soft_limit_ms', 'unlimited') WHERE json_extract(settings, '$.soft_limit_ms') = 0;
UPDATE pools SET settings = json_set(settings, '$.hard_limit_ms', 'unlimited') WHERE json_extract(settings, '$.hard_limit_ms') = 0;
UPDATE pools SET settings = json_set(settings, '$.overrun_grace_ms', 'unlimited') WHERE json_extract(settings, '$.overrun_grace_ms') = 0;
UPDATE pools SET settings = json_set(settings, '$.quarantine_strikes', 'unlimited') WHERE json_extract(settings, '$.quarantine_strikes') = 0;
UPDATE pools SET settings = json_set(settings, '$.strike_decay_s', 'unlimited') WHERE json_extract(settings, '$.strike_decay_s') = 0;
UPDATE pools SET settings = json_set(settings, '$.quarantine_s', 'unlimited') WHERE json_extract(settings, '$.quarantine_s') = 0;

UPDATE vms SET limits = json_set(limits, '$.calls_per_s', 'unlimited') WHERE json_extract(limits, '$.calls_per_s') = 0;
UPDATE vms SET limits = json_set(limits, '$.bytes_per_s', 'unlimited') WHERE json_extract(limits, '$.bytes_per_s') = 0;
UPDATE vms SET limits = json_set(limits, '$.gpu_ms_per_s', 'unlimited') WHERE json_extract(limits, '$.gpu_ms_per_s') = 0;
UPDATE vms SET limits = json_set(limits, '$.queue_calls', 'unlimited') WHERE json_extract(limits, '$.queue_calls') = 0;
UPDATE vms SET limits = json_set(limits, '$.queue_bytes', 'unlimited') WHERE json_extract(limits, '$.queue_bytes') = 0;
UPDATE vms SET limits = json_set(limits, '$.sessions', 'unlimited') WHERE json_extract(limits, '$.sessions') = 0;
UPDATE vms SET limits = json_set(limits, '$.memory_bytes', 'unlimited') WHERE json_extract(limits, '$.memory_bytes') = 0;
UPDATE vms SET limits = json_set(limits, '$.pinned_bytes', 'unlimited') WHERE json_extract(limits, '$.pinned_bytes') = 0;
UPDATE vms SET limits = json_set(limits, '$.soft_limit_ms', 'unlimited') WHERE json_extract(limits, '$.soft_limit_ms') = 0;
UPDATE vms SET limits = json_set(limits, '$.hard_limit_ms', 'unlimited') WHERE json_extract(limits, '$.hard_limit_ms') = 0;

UPDATE vms SET limits = json_remove(limits, '$.calls_burst') WHERE json_extract(limits, '$.calls_burst') = 0;
UPDATE vms SET limits = json_remove(limits, '$.bytes_burst') WHERE json_extract(limits, '$.bytes_burst') = 0;
UPDATE vms SET limits = json_remove(limits, '$.gpu_ms_burst') WHERE json_extract(limits, '$.gpu_ms_burst') = 0;
