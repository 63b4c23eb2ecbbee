package jobspec

import "time"

// Version is the schema version of the canonical JSON. A reader refuses a
// higher one; fields are only ever added within one version.
const Version = 1

// Job is one submission: stages in a DAG, charged to one tenant.
type Job struct {
	Version int    `json:"version"`
	Name    string `json:"name"`   // unique among live jobs; [A-Za-z0-9._-], at most 128 bytes
	Tenant  string `json:"tenant"` // who is charged

	Priority Priority `json:"priority"`
	Image    *Image   `json:"image,omitempty"`  // nil: the harness's built-ins, or host programs under the process driver
	Input    *Input   `json:"input,omitempty"`  // read by the map stage
	Output   *Output  `json:"output,omitempty"` // written by the last stage
	Stages   []Stage  `json:"stages"`

	Env        map[string]string `json:"env,omitempty"` // for every stage; a stage's own wins
	KeepFailed int               `json:"keep_failed"`   // attempts whose folder stays for a look after a failure
	Meta       map[string]string `json:"meta,omitempty"`

	// Deadlines and guarantees. They are typed from the start; a coordinator
	// refuses a job that uses one it does not support.
	Deadline     *time.Time `json:"deadline,omitempty"`
	RuntimeBound Duration   `json:"runtime_bound,omitempty"` // upper bound on the whole job's run time
	Project      string     `json:"project,omitempty"`
	OnMiss       OnMiss     `json:"on_miss,omitempty"` // what happens once the deadline cannot be met
}

// Input says what the map stage reads.
type Input struct {
	Paths   []string `json:"paths"`             // hdfs:// or file:// URIs; the last elements may be globs
	Combine int64    `json:"combine,omitempty"` // bytes: pack small files into splits of up to this size; 0 = one split per block
}

// Output says where the result goes. The path must not exist when the job is
// accepted, and an accepted job holds it.
type Output struct {
	Path        string `json:"path"`
	Replication int    `json:"replication,omitempty"` // 0 = the file system's default
}

// ImageKind names a form in which a root file system is given.
type ImageKind string

// The forms of an image.
const (
	ImageOCIArchive ImageKind = "oci-archive" // a tar in the OCI layout, uploaded by digest
	ImageRegistry   ImageKind = "registry"    // a name that nodes pull; only from the operator's allow-list
	ImageRootfs     ImageKind = "rootfs"      // a folder on the nodes; only from the operator's allow-list
)

// Image is the root file system of a job's containers.
type Image struct {
	Kind   ImageKind `json:"kind"`
	Source string    `json:"source"`           // path of the archive as the user wrote it, registry name, or folder
	Digest string    `json:"digest,omitempty"` // "sha256:…" of the archive once uploaded
	Size   int64     `json:"size,omitempty"`   // bytes of the archive
}

// Stage is a set of tasks of one shape.
type Stage struct {
	Name    string    `json:"name"`
	Kind    StageKind `json:"kind"`
	Command []string  `json:"command,omitempty"` // argv of the task
	Builtin []string  `json:"builtin,omitempty"` // a built-in mapper or reducer and its arguments, instead of a command
	Tasks   int       `json:"tasks,omitempty"`   // reduce and group: number of tasks; map: given by the input
	After   []string  `json:"after,omitempty"`   // stages that must be done first
	// Combiner runs the reducer (or Combine, if given) over the map side's
	// sorted output. It belongs to the reduce stage.
	Combiner       bool     `json:"combiner,omitempty"`
	CombineCommand []string `json:"combine_command,omitempty"`

	Resources   Resources         `json:"resources"`
	Disk        int64             `json:"disk"` // bytes of disk space an attempt may fill
	Env         map[string]string `json:"env,omitempty"`
	Files       []File            `json:"files,omitempty"`
	Secrets     []Secret          `json:"secrets,omitempty"`
	Attempts    int               `json:"attempts"`             // tries a task has before the job fails
	TimeLimit   Duration          `json:"time_limit,omitempty"` // running time of one attempt; 0 = none
	MaxParallel int               `json:"max_parallel,omitempty"`
	Exclusive   bool              `json:"exclusive,omitempty"` // never two thawed runs of one task, also under partition
}

// Resources is the demand of one task.
type Resources struct {
	CPU    int64 `json:"cpu"`    // millicores
	Memory int64 `json:"memory"` // bytes
	IO     int64 `json:"io"`     // bytes per second of disk reads, and as much of disk writes
}

// File is a file put into the task's folder before it starts.
type File struct {
	Name   string `json:"name"`             // path below /task, no ".." elements
	Source string `json:"source,omitempty"` // where the user's machine has it; informative once uploaded
	Digest string `json:"digest,omitempty"` // "sha256:…" in the coordinator's store
	Size   int64  `json:"size,omitempty"`   // bytes
	Mode   uint32 `json:"mode,omitempty"`   // permission bits; 0 = 0644
}

// Secret names a value that a node resolves when the task starts. The value
// itself is never part of a spec, a log entry or a listing.
type Secret struct {
	Env string `json:"env"` // environment variable that receives it
	Ref string `json:"ref"` // "file:NAME" below the node's secrets folder
}

// StageKind is the closed set of stage kinds.
type StageKind string

// The kinds of a stage.
const (
	KindMap    StageKind = "map"
	KindReduce StageKind = "reduce"
	KindGroup  StageKind = "group"
)

// Priority orders regular jobs and the victims among them.
type Priority string

// The two priorities.
const (
	PriorityLow  Priority = "low"
	PriorityHigh Priority = "high"
)

// OnMiss says what becomes of a job whose deadline cannot be met any more.
type OnMiss string

// The answers to a missed deadline.
const (
	OnMissContinue OnMiss = "continue" // stays a deadline job, behind those that can still be met
	OnMissLower    OnMiss = "lower"    // becomes a regular low-priority job
	OnMissStop     OnMiss = "stop"     // is stopped
)

// Defaults of a stage that says nothing else.
const (
	DefaultAttempts   = 4
	DefaultCPU        = 1000             // millicores
	DefaultMemory     = 256 << 20        // bytes
	DefaultIO         = 10 << 20         // bytes per second
	DefaultDisk       = int64(1) << 30   // bytes
	DefaultKeepFailed = 1                // attempts
	MaxSubmission     = int64(512) << 20 // bytes of one file or image that can be uploaded
	MaxTasks          = 1_000_000        // tasks of one stage
	MaxStages         = 64
)
