package main

import (
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/apitext"
	"github.com/drover-run/drover/internal/plain"
)

// jobView shows a running job: a bar per stage on a terminal, a line per change
// elsewhere (of a large job per hundredth of its tasks), and nothing with -json.
type jobView struct {
	w           io.Writer
	silent      bool
	bars        *mpb.Progress // nil: lines
	stageBars   []*stageBar
	lastPrinted string
	lastPhase   string // what is always worth a line, as it was printed last
	lastEnded   int32  // ended attempts, as printed last
}

type stageBar struct {
	bar  *mpb.Bar
	text atomic.Value // string, shown behind the bar
}

func newJobView(w io.Writer, quiet bool) *jobView {
	v := &jobView{w: w, silent: quiet}
	if !quiet && isTerminal(w) {
		v.bars = mpb.New(mpb.WithOutput(rawWriter(w)), mpb.WithWidth(40), mpb.WithRefreshRate(100*time.Millisecond))
	}
	return v
}

func (v *jobView) update(r *droverv1.GetJobResponse) {
	switch {
	case v.silent:
	case v.bars == nil:
		v.printChanges(r)
	default:
		v.drawBars(r)
	}
}

func (v *jobView) printChanges(r *droverv1.GetJobResponse) {
	parts := []string{fmt.Sprintf("%s %s", r.Job.Name, apitext.JobState(r.Job.State))}
	phase := apitext.JobState(r.Job.State)
	var tasks, ended int32
	for _, s := range r.Stages {
		parts = append(parts, fmt.Sprintf("%s %d/%d", s.Name, s.Done, s.Tasks)+stageProgressText(s))
		phase += fmt.Sprint(" ", s.Running > 0, s.Suspended > 0, s.FailedAttempts > 0, s.Done == s.Tasks)
		tasks += s.Tasks
		ended += s.Done + s.FailedAttempts
	}
	line := strings.Join(parts, "  ")
	if line == v.lastPrinted || tasks > everyChange && phase == v.lastPhase && abs(ended-v.lastEnded) < tasks/everyChange {
		return
	}
	v.lastPrinted, v.lastPhase, v.lastEnded = line, phase, ended
	fmt.Fprintln(v.w, line)
}

// everyChange is up to how many tasks of a job each change gets a line. A larger one gets about so
// many lines, for the sake of the mail of cron and the log of a build.
const everyChange = 100

func abs(n int32) int32 { return max(n, -n) }

func (v *jobView) drawBars(r *droverv1.GetJobResponse) {
	for i, s := range r.Stages {
		if i == len(v.stageBars) {
			b := &stageBar{}
			b.text.Store("")
			b.bar = v.bars.AddBar(int64(s.Tasks),
				mpb.PrependDecorators(decor.Name(s.Name, decor.WC{W: 12, C: decor.DindentRight})),
				mpb.AppendDecorators(decor.CountersNoUnit("%d/%d"), decor.Any(func(decor.Statistics) string { return b.text.Load().(string) })))
			v.stageBars = append(v.stageBars, b)
		}
		b := v.stageBars[i]
		b.text.Store(stageProgressText(s))
		b.bar.SetTotal(int64(s.Tasks), false)
		b.bar.SetCurrent(int64(s.Done))
	}
}

// stageProgressText formats the state of a stage's tasks beside the progress bar.
func stageProgressText(s *droverv1.StageSummary) string {
	var n []string
	if s.Running > 0 {
		n = append(n, fmt.Sprintf("%d running", s.Running))
	}
	if s.Suspended > 0 {
		n = append(n, fmt.Sprintf("%d suspended", s.Suspended))
	}
	switch {
	case s.FailedAttempts == 1:
		n = append(n, "1 failed attempt")
	case s.FailedAttempts > 1:
		n = append(n, fmt.Sprintf("%d failed attempts", s.FailedAttempts))
	}
	if s.Waiting != "" && s.Running == 0 && s.Done < s.Tasks {
		n = append(n, "waiting: "+plain.Line(s.Waiting))
	}
	if len(n) == 0 {
		return ""
	}
	return " (" + strings.Join(n, ", ") + ")"
}

// say prints a line, above the bars where there are any.
func (v *jobView) say(text string) {
	w := v.w
	if v.bars != nil {
		w = v.bars
	}
	fmt.Fprintln(w, text)
}

// close stops the bars and leaves their last state on the screen.
func (v *jobView) close() {
	if v.bars == nil {
		return
	}
	for _, b := range v.stageBars {
		b.bar.Abort(false)
	}
	v.bars.Wait()
}
