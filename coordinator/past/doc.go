// Package past stores what ended: jobs, attempts, sums of what was used, and samples
// over time, in one bbolt file that is limited by size and age.
//
// It is filled from the log. Each record has the index of the entry that made it,
// and the store keeps the index up to which it has everything (Applied) in the same
// transaction. After a crash the log is applied again from its last snapshot, and
// gives what the store misses; records up to Applied are left out by the caller.
// A snapshot of the log must wait for Advance, or the log would drop entries that
// the store has not seen.
//
// The file is history.db below the store's folder:
//
//	history.db
//	├── meta      version = sealed version (a bare uint32 in older files); applied = sealed index
//	├── jobs      job = JobSummary
//	├── details   job = PastJob without its summary, zstd
//	├── attempts  job stage task attempt = PastAttempt
//	├── ends      end job = (nothing)               indexes of jobs by their end …
//	├── tenants   tenant 0 end job = (nothing)      … of a tenant, …
//	├── users     user 0 end job = (nothing)        … of a user, …
//	├── states    state end job = (nothing)         … in a state, …
//	├── names     name 0 end job = (nothing)        … of that name
//	├── usage     day 0 tenant 0 user 0 name = UsageRow
//	└── samples   resolution tenant 0 time = PastSample; tenant "" is the cluster
//
// Numbers in keys are big-endian: job, end and time (ms) 8 bytes, stage, task,
// attempt and day 4, state and resolution 1. A value is sealed:
//
//	1 byte   kind of the bucket
//	8 bytes  index of the entry
//	n bytes  protobuf message
//	4 bytes  CRC-32C of kind, key and all before
//
// Open reads every page and every seal before the database does (internal/boltpages),
// O(bytes). A damaged file is moved aside, what is whole in it is written to a new
// one, and Repaired says what happened. So the kind stands in the value: a pair is
// believed without the tree that leads to it.
//
// Limits: Prune deletes the jobs that ended first, with their attempts, while there
// is more than MaxBytes or they ended MaxAge ago, and merges job names in the usage
// of days without jobs. Samples are thinned with age (Resolutions).
//
// All methods are safe for concurrent use. Only one goroutine should write.
package past
