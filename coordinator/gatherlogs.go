package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/sleep"
)

// Limits of gathering the logs of one job.
const (
	maxGathering   = 8                // nodes at once
	gatherLimit    = 10 * time.Minute // of one try of one node
	gatherPatience = 2 * time.Hour    // for nodes and file systems that are away
	maxMissingLogs = 512              // bytes of the text about those that could not be had: as many as the facts keep
)

// logGathering is what is needed to gather the logs of an ended job.
type logGathering struct {
	job    uint64
	folder string
	user   string
	stages []string
	nodes  map[int32]string // that had attempts of it: names by number
}

// newLogGathering must be called under the facts' lock. O(attempts of the job).
func newLogGathering(f *facts.Facts, j *facts.Job) logGathering {
	g := logGathering{job: j.ID, folder: j.LogsFolder(), user: hdfsUser(f, j.Spec), nodes: map[int32]string{}}
	for i := range j.Spec.Stages {
		g.stages = append(g.stages, j.Spec.Stages[i].Name)
	}
	f.EachAttempt(j, func(_ facts.Key, _ *facts.Task, a *facts.Attempt) {
		if n := f.Node(a.Node); n != nil {
			g.nodes[a.Node] = n.Info.GetName()
		}
	})
	return g
}

// gatherLogs has each node write the job's logs that it has, and proposes the outcome. Missing logs
// do not change the job's result; the outcome names them.
func (n *intents) gatherLogs(ctx context.Context, job uint64) {
	var g logGathering
	n.c.view(func(f *facts.Facts) {
		if j := f.Job(job); j != nil {
			g = newLogGathering(f, j)
		}
	})
	if g.job == 0 { // forgotten meanwhile
		return
	}
	patient, cancel := context.WithTimeout(ctx, gatherPatience)
	defer cancel()
	var mu sync.Mutex
	missing := map[string]string{} // by node
	var all errgroup.Group
	all.SetLimit(maxGathering)
	for _, id := range slices.Sorted(maps.Keys(g.nodes)) {
		all.Go(func() error {
			if err := g.from(patient, n.c.dispatcher, id); err != nil {
				mu.Lock()
				defer mu.Unlock()
				missing[g.nodes[id]] = err.Error()
			}
			return nil
		})
	}
	_ = all.Wait() // none returns an error
	fact := &droverv1.LogsGatheredFact{Job: g.job, Folder: g.folder}
	if len(missing) > 0 {
		names := slices.Sorted(maps.Keys(missing))
		fact.Missing = clipText(fmt.Sprintf("those of %s: %s", strings.Join(names, ", "), missing[names[0]]), maxMissingLogs)
		n.c.log.Warn("the logs of a job could not be gathered as a whole", "job", g.job, "folder", g.folder, "missing", fact.Missing)
	}
	n.proposeOutcome(ctx, &droverv1.Entry{Body: &droverv1.Entry_LogsGathered{LogsGathered: fact}})
}

// from has one node write its file. It tries again while the node or the file system is
// unavailable, or too many requests are pending.
func (g *logGathering) from(ctx context.Context, d *dispatcher, node int32) error {
	path := g.folder + "/" + strings.ReplaceAll(g.nodes[node], "/", "_") + ".log"
	for pause := intentPause; ; pause = min(2*pause, maxIntentPause) {
		try, cancel := context.WithTimeout(ctx, gatherLimit)
		request := &droverv1.NodeRequest{User: g.user, Operation: &droverv1.NodeRequest_GatherLogs{GatherLogs: &droverv1.GatherLogsRequest{Job: g.job, Path: path, Stages: g.stages}}}
		_, err := d.callNode(try, request, uriScheme(path), node)
		cancel()
		if !passesByItself(err) || !sleep.For(ctx, pause) {
			return err
		}
	}
}
