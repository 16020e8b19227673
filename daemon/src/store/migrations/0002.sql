-- What the scheduler's gangs, slices of VMs and growing quarantines need.

ALTER TABLE vms ADD COLUMN slice_us       INTEGER;                      -- NULL: the pool's
ALTER TABLE vms ADD COLUMN gang           INTEGER NOT NULL DEFAULT 0 CHECK (gang IN (0, 1));
ALTER TABLE vms ADD COLUMN gpus           TEXT;                         -- JSON list of UUIDs; NULL: all
ALTER TABLE vms ADD COLUMN quarantines    INTEGER NOT NULL DEFAULT 0;   -- by strikes, not forgotten
ALTER TABLE vms ADD COLUMN quarantines_ms INTEGER NOT NULL DEFAULT 0;   -- since when the next is forgotten
