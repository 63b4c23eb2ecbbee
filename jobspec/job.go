package jobspec

import (
	"slices"
	"time"
)

// Version is the schema version of the canonical JSON. A reader refuses a higher
// version. Within one version fields are only added.
const Version = 1

// Job is one submission: a DAG of stages, charged to one tenant.
type Job struct {
	Version int    `json:"version"`
	Name    string `json:"name"`   // unique among the tenant's live jobs; [A-Za-z0-9._-], at most 128 bytes
	Tenant  string `json:"tenant"` // the tenant that is charged

	Priority Priority `json:"priority"`
	Image    *Image   `json:"image,omitempty"`  // nil: only the harness's built-ins, or host programs under the process driver
	Input    *Input   `json:"input,omitempty"`  // read by the map stage
	Output   *Output  `json:"output,omitempty"` // written by the last stage
	Stages   []Stage  `json:"stages"`

	Env        map[string]string `json:"env,omitempty"`         // for every stage; a stage's own value wins
	GatherLogs string            `json:"gather_logs,omitempty"` // folder into which the logs of its attempts go when it ends
	KeepFailed int               `json:"keep_failed"`           // number of failed attempts whose folder is kept for inspection
	Meta       map[string]string `json:"meta,omitempty"`

	// Deadlines and guarantees. A coordinator refuses a job that uses a feature
	// it does not support.
	Deadline     *time.Time `json:"deadline,omitempty"`
	RuntimeBound Duration   `json:"runtime_bound,omitempty"` // longest time that one task of the job may run
	Project      string     `json:"project,omitempty"`
	OnMiss       OnMiss     `json:"on_miss,omitempty"` // what happens when the deadline can no longer be met
}

// StagesBefore returns the stages that must be done before stage i, in order: those that it names
// in After, and before a reduce stage the map stage.
func (j *Job) StagesBefore(i int) []int32 {
	var out []int32
	s := &j.Stages[i]
	for k := range j.Stages {
		if k != i && slices.Contains(s.After, j.Stages[k].Name) {
			out = append(out, int32(k))
		}
	}
	m := slices.IndexFunc(j.Stages, func(s Stage) bool { return s.Kind == KindMap })
	if s.Kind == KindReduce && m >= 0 {
		out = append(out, int32(m))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Input is the input of the map stage.
type Input struct {
	Paths        []string `json:"paths"`             // hdfs:// or file:// URIs; the last elements may be globs
	CombineBytes int64    `json:"combine,omitempty"` // pack small files into splits of up to this many bytes; 0: one split per block
	Recurse      bool     `json:"recurse,omitempty"` // also read the subfolders of an input folder; otherwise one is an error
}

// Output is the place of the result. The path must not exist when the job is
// accepted; an accepted job reserves it.
type Output struct {
	Path        string `json:"path"`
	Replication int    `json:"replication,omitempty"` // 0: the file system's default
}

// ImageKind is the form of a root file system.
type ImageKind string

// The forms of an image.
const (
	ImageOCIArchive ImageKind = "oci-archive" // a tar in the OCI layout, uploaded by digest
	ImageRegistry   ImageKind = "registry"    // a name that nodes pull; must match the operator's allow-list
	ImageRootfs     ImageKind = "rootfs"      // a folder on the nodes; must match the operator's allow-list
)

// Image is the root file system of a job's containers.
type Image struct {
	Kind   ImageKind `json:"kind"`
	Source string    `json:"source"`           // path of the archive on the user's machine, registry name, or folder
	Digest string    `json:"digest,omitempty"` // "sha256:…" of the archive once uploaded
	Size   int64     `json:"size,omitempty"`   // bytes of the archive
}

// Stage is a set of tasks with the same program and resources.
type Stage struct {
	Name    string    `json:"name"`
	Kind    StageKind `json:"kind"`
	Command []string  `json:"command,omitempty"` // argv of the task
	Builtin []string  `json:"builtin,omitempty"` // a built-in mapper or reducer and its arguments, instead of a command
	Tasks   int       `json:"tasks,omitempty"`   // reduce and group: number of tasks; map: determined by the input
	After   []string  `json:"after,omitempty"`   // stages that must be done first
	// Combiner runs the reducer (or CombineCommand, if set) over the sorted output
	// of each map task. It is set in the reduce stage.
	Combiner       bool     `json:"combiner,omitempty"`
	CombineCommand []string `json:"combine_command,omitempty"`
	// CompressMapOutput is set in the map stage; empty: CompressAuto. SetDefaults leaves it empty, so
	// that a coordinator that does not know it accepts the job.
	CompressMapOutput Compression `json:"compress_map_output,omitempty"`

	// What of a mapper's line is its key, and which task of the reduce stage gets it. They are set
	// in the reduce stage.
	KeyFields       int      `json:"key_fields,omitempty"`       // number of the first tab-separated fields that are the key; 0: 1
	KeyOrder        []string `json:"key_order,omitempty"`        // how each field of the key is compared, one of keyorder.Entries; none: the bytes of the key
	PartitionFields int      `json:"partition_fields,omitempty"` // number of the key's first fields whose hash chooses the task; 0: all
	PartitionKeys   []string `json:"partition_keys,omitempty"`   // increasing, in the order of the keys: the smallest key of each task but the first, instead of the hash
	// PartitionFile is a file on the user's machine with the partition keys, one on each line. The
	// command line reads it into PartitionKeys (SetPartitionKeys); a coordinator refuses a job in
	// which it is set.
	PartitionFile string `json:"partition_file,omitempty"`

	Resources   Resources         `json:"resources"`
	Disk        int64             `json:"disk"` // disk space of an attempt in bytes
	Env         map[string]string `json:"env,omitempty"`
	Files       []File            `json:"files,omitempty"`
	Secrets     []Secret          `json:"secrets,omitempty"`
	Attempts    int               `json:"attempts"`             // attempts of a task before the job fails
	TimeLimit   Duration          `json:"time_limit,omitempty"` // running time of one attempt; 0: no limit
	MaxParallel int               `json:"max_parallel,omitempty"`
	// SlowStart is the part of the map tasks, above 0 and at most 1, after which the tasks of a
	// reduce stage may start to fetch, once no map task waits or is suspended; 0: 1.
	SlowStart float64 `json:"slow_start,omitempty"`
	Exclusive bool    `json:"exclusive,omitempty"` // never two running attempts of one task, even during a network partition
	// ContainersUsedAgain is whether the first attempts of tasks on one node run one after another
	// in one container; nil: once tasks of the stage have been short on that node.
	ContainersUsedAgain *bool `json:"containers_used_again,omitempty"`
}

// Resources is the demand of one task.
type Resources struct {
	CPU    int64 `json:"cpu"`    // millicores
	Memory int64 `json:"memory"` // bytes
	IO     int64 `json:"io"`     // bytes per second of disk reads, and the same of disk writes
}

// File is a file copied into the task's folder before the task starts.
type File struct {
	Name   string `json:"name"`             // path below /task, no ".." elements
	Source string `json:"source,omitempty"` // path on the user's machine; only informative after the upload
	Digest string `json:"digest,omitempty"` // "sha256:…" in the coordinator's store
	Size   int64  `json:"size,omitempty"`   // bytes
	Mode   uint32 `json:"mode,omitempty"`   // permission bits; 0: 0644; the command line fills in those of the source
}

// Secret is a value that the node resolves when the task starts. The value itself
// is never part of a spec, a log entry or a listing.
type Secret struct {
	Env string `json:"env"` // environment variable that receives it
	Ref string `json:"ref"` // "secret:NAME", "secret:NAME@VERSION" or "file:NAME"; see ParseSecretRef
}

// StageKind is the closed set of stage kinds.
type StageKind string

// The kinds of a stage.
const (
	KindMap    StageKind = "map"
	KindReduce StageKind = "reduce"
	KindGroup  StageKind = "group"
)

// Compression is whether map tasks compress their outputs.
type Compression string

// The compressions of map outputs.
const (
	CompressAuto Compression = "auto" // where the disk is slower than the processor
	CompressNone Compression = "none"
	CompressZstd Compression = "zstd"
)

// Priority orders regular jobs, and victims of preemption.
type Priority string

// The two priorities.
const (
	PriorityLow  Priority = "low"
	PriorityHigh Priority = "high"
)

// OnMiss is the policy for a job whose deadline can no longer be met.
type OnMiss string

// The policies for a missed deadline.
const (
	OnMissContinue OnMiss = "continue" // stays a deadline job, after those that can still meet theirs
	OnMissLower    OnMiss = "lower"    // becomes a regular low-priority job
	OnMissStop     OnMiss = "stop"     // is stopped
)

// Defaults of a stage, and limits.
const (
	DefaultAttempts      = 4
	defaultCPU           = 1000             // millicores
	defaultMemory        = 256 << 20        // bytes
	defaultIO            = 10 << 20         // bytes per second
	DefaultDisk          = int64(1) << 30   // bytes of a task with a core or more, and of each map or reduce task
	minDefaultDisk       = int64(64) << 20  // bytes of a group task with little CPU
	DefaultKeepFailed    = 1                // attempts
	MaxUploadBytes       = int64(512) << 20 // bytes of one file or image that can be uploaded
	MaxTasks             = 1_000_000        // tasks of one stage
	MaxReduceTasks       = 65_535           // tasks of a reduce stage: partitions of a map output
	MaxStages            = 64
	MaxPartitionKeyBytes = 64 << 10 // bytes of a stage's partition keys: each map task gets them
)
