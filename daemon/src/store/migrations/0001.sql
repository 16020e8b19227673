-- Times are milliseconds since 1970; JSON columns hold the types of vgpu_api.

CREATE TABLE settings (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE gpus (
    uuid          TEXT PRIMARY KEY,
    gpu_id        INTEGER NOT NULL UNIQUE,
    state         TEXT NOT NULL,              -- JSON of GpuState
    state_reason  TEXT,
    seen          TEXT NOT NULL,              -- JSON of what the last scan saw
    first_seen_ms INTEGER NOT NULL,
    last_seen_ms  INTEGER NOT NULL
) STRICT;

CREATE TABLE pools (
    name       TEXT PRIMARY KEY,
    settings   TEXT NOT NULL,                 -- JSON of PoolSettings: policy, slice, limits, …
    created_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE assignments (
    gpu_uuid TEXT NOT NULL REFERENCES gpus (uuid),
    pool     TEXT NOT NULL REFERENCES pools (name),
    since_ms INTEGER NOT NULL,
    PRIMARY KEY (gpu_uuid, pool)
) STRICT;

CREATE TABLE vms (
    vm_id           INTEGER PRIMARY KEY CHECK (vm_id > 0),
    name            TEXT NOT NULL UNIQUE,
    pool            TEXT NOT NULL REFERENCES pools (name),
    priority        TEXT NOT NULL,            -- JSON of Priority
    factor_percent  INTEGER NOT NULL,
    generation      INTEGER NOT NULL UNIQUE,
    cid             INTEGER UNIQUE,
    socket          TEXT UNIQUE,
    peer_uid        INTEGER,
    limits          TEXT NOT NULL,            -- JSON of VmLimits: rates, queue, sessions, memory
    quarantine      TEXT,                     -- JSON of Quarantine
    strikes         INTEGER NOT NULL,
    last_strike_ms  INTEGER NOT NULL,
    registered_ms   INTEGER NOT NULL
) STRICT;

-- Totals of a registration; another registration of the same number starts anew.
CREATE TABLE usage (
    vm_id        INTEGER PRIMARY KEY REFERENCES vms (vm_id) ON DELETE CASCADE,
    generation   INTEGER NOT NULL,
    debt_ns      INTEGER NOT NULL,
    gpu_ns       INTEGER NOT NULL,
    wait_ns      INTEGER NOT NULL,
    throttled_ns INTEGER NOT NULL,
    calls        INTEGER NOT NULL,
    bytes_in     INTEGER NOT NULL,
    bytes_out    INTEGER NOT NULL,
    sessions     INTEGER NOT NULL,
    kills        INTEGER NOT NULL,
    soft_limits  INTEGER NOT NULL,
    refusals     INTEGER NOT NULL,
    rate_limited INTEGER NOT NULL
) STRICT;

CREATE TABLE events (
    seq        INTEGER PRIMARY KEY,
    at_ms      INTEGER NOT NULL,
    kind       TEXT NOT NULL,                 -- JSON of EventKind
    severity   TEXT NOT NULL,                 -- JSON of Severity
    vm_id      INTEGER,
    session_id INTEGER,
    gpu_uuid   TEXT,
    pool       TEXT,
    message    TEXT NOT NULL
) STRICT;

CREATE TABLE audit (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms  INTEGER NOT NULL,
    actor  TEXT NOT NULL,
    pid    INTEGER,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    detail TEXT NOT NULL                      -- JSON of the command
) STRICT;

-- Commands carried out under an idempotency key, to answer a repetition as the first time.
CREATE TABLE requests (
    actor   TEXT NOT NULL,
    key     TEXT NOT NULL,
    at_ms   INTEGER NOT NULL,
    command TEXT NOT NULL,
    outcome TEXT NOT NULL,
    PRIMARY KEY (actor, key)
) STRICT;

CREATE INDEX requests_by_age ON requests (at_ms);
