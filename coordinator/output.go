package coordinator

import (
	"fmt"
	"path"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
)

func timeMS(d jobspec.Duration) int64 { return time.Duration(d).Milliseconds() }

// cleanURI returns a valid URI in the spelling under which outputs are reserved: hdfs:///a/b for
// hdfs:///a//b and hdfs:///a/./b/.
func cleanURI(uri string) string {
	scheme, rest, _ := strings.Cut(uri, "://")
	slash := max(0, strings.IndexByte(rest, '/'))
	return scheme + "://" + rest[:slash] + path.Clean(rest[slash:])
}

// partName returns the name of a task's output file, as in Hadoop.
func partName(task int32) string { return fmt.Sprintf("part-%05d", task) }

// attemptOutput returns where one run of an attempt writes its file: in its own
// folder below the job's temporary one, so that runs never collide.
func attemptOutput(j *facts.Job, k facts.Key, run int32) string {
	return fmt.Sprintf("%s/%d.%d.%d.%d/%s", j.Temporary, k.Stage, k.Task, k.Attempt, run, partName(k.Task))
}

// commitRequest returns the request to publish the files of a job's winners.
func commitRequest(f *facts.Facts, j *facts.Job) *droverv1.NodeRequest {
	c := &droverv1.CommitOutputRequest{Path: j.Output, Temporary: j.Temporary}
	for i := range j.Stages {
		if !j.WritesOutput(i) {
			continue
		}
		for t := range j.Stages[i].Tasks {
			w := j.Stages[i].Task(t).WinningAttempt()
			if w == nil {
				continue
			}
			k := facts.Key{Job: j.ID, Stage: int32(i), Task: t, Attempt: w.Attempt}
			c.Files = append(c.Files, &droverv1.CommitFile{Source: attemptOutput(j, k, w.Run), Name: partName(t),
				Length: w.Seen().GetOutputLength(), Checksum: w.Seen().GetOutputChecksum()})
		}
	}
	return &droverv1.NodeRequest{User: hdfsUser(f, j.Spec), Operation: &droverv1.NodeRequest_CommitOutput{CommitOutput: c}}
}

// cleanupRequest returns the request to remove what a failed or stopped job
// wrote.
func cleanupRequest(f *facts.Facts, j *facts.Job) *droverv1.NodeRequest {
	return &droverv1.NodeRequest{User: hdfsUser(f, j.Spec), Operation: &droverv1.NodeRequest_DeletePath{DeletePath: &droverv1.DeletePathRequest{Path: j.Temporary}}}
}

// hdfsUser returns the HDFS user of the job's tenant: the tenant's name unless
// configured.
func hdfsUser(f *facts.Facts, spec *jobspec.Job) string {
	if t := f.Tenant(spec.Tenant); t != nil && t.Spec.GetHdfsUser() != "" {
		return t.Spec.GetHdfsUser()
	}
	return spec.Tenant
}
