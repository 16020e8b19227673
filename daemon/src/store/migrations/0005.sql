-- The VM of a hypervisor that an import registered.

ALTER TABLE vms ADD COLUMN origin TEXT;
