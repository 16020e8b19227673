-- Totals that are exported and can be reset.

ALTER TABLE usage ADD COLUMN turns       INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN memory_peak INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN pinned_peak INTEGER NOT NULL DEFAULT 0;
ALTER TABLE usage ADD COLUMN since_ms    INTEGER NOT NULL DEFAULT 0;   -- 0: since the registration
