package coordinator

import (
	"fmt"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
)

func timeMS(d jobspec.Duration) int64 { return time.Duration(d).Milliseconds() }

// partName names the file of a task in the output folder, as Hadoop does.
func partName(task int32) string { return fmt.Sprintf("part-%05d", task) }

// attemptOutput is where one run of an attempt writes its file: a folder of
// its own below the job's temporary one, so that no two runs ever meet.
func attemptOutput(j *facts.Job, k facts.Key, run int32) string {
	return fmt.Sprintf("%s/%d.%d.%d.%d/%s", j.Temporary, k.Stage, k.Task, k.Attempt, run, partName(k.Task))
}

// commitOrder is the intent to publish a job's result: the winners' files.
func commitOrder(f *facts.Facts, j *facts.Job) *droverv1.Order {
	c := &droverv1.CommitOutputOrder{Path: j.Output, Temporary: j.Temporary}
	for i := range j.Stages {
		if !j.Writes(i) {
			continue
		}
		for t := range j.Stages[i].Tasks {
			w := j.Stages[i].Task(t).Win()
			if w == nil {
				continue
			}
			k := facts.Key{Job: j.ID, Stage: int32(i), Task: t, Attempt: w.Attempt}
			c.Files = append(c.Files, &droverv1.CommitFile{Source: attemptOutput(j, k, w.Run), Name: partName(t),
				Length: w.Seen.GetOutputLength(), Checksum: w.Seen.GetOutputChecksum()})
		}
	}
	return &droverv1.Order{User: hdfsUser(f, j.Spec), What: &droverv1.Order_CommitOutput{CommitOutput: c}}
}

// cleanOrder is the intent to remove what a failed or stopped job wrote.
func cleanOrder(f *facts.Facts, j *facts.Job) *droverv1.Order {
	return &droverv1.Order{User: hdfsUser(f, j.Spec), What: &droverv1.Order_DeletePath{DeletePath: &droverv1.DeletePathOrder{Path: j.Temporary}}}
}

// hdfsUser is the HDFS user of the job's tenant: the tenant's own name where
// its table names none.
func hdfsUser(f *facts.Facts, spec *jobspec.Job) string {
	if t := f.Tenant(spec.Tenant); t != nil && t.Spec.GetHdfsUser() != "" {
		return t.Spec.GetHdfsUser()
	}
	return spec.Tenant
}
