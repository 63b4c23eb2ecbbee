package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/coordclient"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/version"
)

// debugItemLimit bounds the time for one item of an archive, besides the length of a
// CPU profile.
const debugItemLimit = 30 * time.Second

func debugCommand() *cli.Command {
	return &cli.Command{
		Name:  "debug",
		Usage: "gather what a developer would ask for into one archive",
		Description: "The archive has the state of the cluster (servers, nodes, tenants, scheduler, jobs, events), the metrics of each\n" +
			"coordinator, and recent log records and profiles of each coordinator and of the nodes given. It has no job files, no\n" +
			"variables of tasks, no secrets and no uploaded files. What could not be had, and which daemons could not be reached,\n" +
			"is listed in manifest.json. Without a leader, `drover -stale operator debug` gathers what there is.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Usage: "file of the archive, which may not exist yet; default: drover-debug-TIME.tar.gz"},
			&cli.StringSliceFlag{Name: "node", Usage: "include this node's log and profiles, repeatable; all: of each node"},
			&cli.IntFlag{Name: "seconds", Value: 5, Usage: "length of the CPU profiles"},
		},
		Action: runDebug,
	}
}

func runDebug(c *cli.Context) (err error) {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	if s := c.Int("seconds"); s < 1 || s > 60 {
		return usageErrorf("-seconds %d: want 1 to 60", s)
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	// Nothing is written for a coordinator that does not answer or refuses the caller.
	if err := monitor(c.Context, cl, &droverv1.MonitorRequest{}, io.Discard, true); err != nil {
		return err
	}
	name := c.String("output")
	if name == "" {
		name = "drover-debug-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fault.New(fault.Exists, "%s exists already: name another file with -output", name)
	}
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f)
	a := &debugArchive{c: c, cl: cl, tar: tar.NewWriter(z), now: time.Now()}
	err = errors.Join(a.gather(), a.tar.Close(), z.Close(), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(name))
	}
	for _, e := range a.errors {
		fmt.Fprintln(c.App.ErrWriter, "not in the archive: "+e)
	}
	fmt.Fprintln(c.App.Writer, name)
	return nil
}

// debugArchive is an archive that is being written. An item that cannot be had does not
// end it.
type debugArchive struct {
	c   *cli.Context
	cl  *client
	now time.Time

	mu     sync.Mutex // guards the fields below, and the output
	tar    *tar.Writer
	errors []string
}

// debugItem is one file of the archive.
type debugItem struct {
	name string
	get  func(ctx context.Context, w io.Writer) error
}

// debugDaemon is a process, and its folder in the archive.
type debugDaemon struct {
	folder string
	cl     *client
	node   string // "" for the coordinator that cl is a client of
}

// debugDaemonsAtOnce bounds the daemons that are asked at the same time.
const debugDaemonsAtOnce = 8

// gather writes all items, then the manifest.
func (a *debugArchive) gather() error {
	for _, item := range a.cluster() {
		if err := a.add(item); err != nil {
			return err
		}
	}
	for _, list := range [][]debugDaemon{a.coordinators(), a.nodes()} { // one after the other: those of `drover dev` are one process
		var g errgroup.Group
		g.SetLimit(debugDaemonsAtOnce)
		for _, d := range list {
			g.Go(func() error { return a.addDaemon(d) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	slices.Sort(a.errors)
	return a.add(debugItem{"manifest.json", func(_ context.Context, w io.Writer) error {
		return printJSON(w, map[string]any{"version": version.Version, "time": a.now.UTC().Format(time.RFC3339), "address": a.cl.address(), "missing": a.errors})
	}})
}

// coordinators lists the coordinators: each of several is asked itself, as the one that has the
// trouble may be a follower.
func (a *debugArchive) coordinators() (out []debugDaemon) {
	res, err := a.cl.listServers(a.c.Context)
	if err != nil {
		a.miss("coordinators", err)
		return []debugDaemon{{folder: "coordinators/unknown", cl: a.cl}} // the one that answers
	}
	for _, s := range res.Servers {
		d := debugDaemon{folder: "coordinators/" + s.Id, cl: a.cl}
		if answers := s.Leader && !a.c.Bool(staleFlag); !answers && len(res.Servers) > 1 {
			if d.cl, err = a.dialServer(s); err != nil {
				a.miss(d.folder, err)
				continue
			}
		}
		out = append(out, d)
	}
	return out
}

// dialServer returns a client of one coordinator, whether it leads or not.
func (a *debugArchive) dialServer(s *droverv1.Server) (*client, error) {
	if s.ApiAddress != "" {
		return dialTo(a.c, s.ApiAddress, true)
	}
	if s.Error != "" {
		return nil, fault.New(fault.Unavailable, "%s", s.Error)
	}
	return nil, fault.New(fault.Unavailable, "it has no address for users: start it with -listen")
}

// nodes lists the nodes of the flags.
func (a *debugArchive) nodes() (out []debugDaemon) {
	names := a.c.StringSlice("node")
	if slices.Contains(names, "all") {
		res, err := a.cl.ListNodes(a.c.Context, connect.NewRequest(&droverv1.ListNodesRequest{}))
		if err != nil {
			a.miss("nodes", a.cl.classifyError(err))
			return nil
		}
		names = nil
		for _, n := range res.Msg.Nodes {
			names = append(names, n.Info.GetName())
		}
	}
	for _, n := range names {
		out = append(out, debugDaemon{"nodes/" + n, a.cl, n})
	}
	return out
}

// addDaemon writes the items of a daemon. One that cannot be reached is asked for nothing else.
func (a *debugArchive) addDaemon(d debugDaemon) error {
	for i, item := range a.daemon(d) {
		b, err := a.get(item)
		if err != nil && a.c.Context.Err() != nil {
			return errInterrupted
		}
		err = d.cl.classifyError(err)
		if i == 0 && (errors.Is(err, fault.Unavailable) || errors.Is(err, fault.NotFound)) {
			a.miss(d.folder, err)
			return nil
		}
		if err != nil {
			a.miss(item.name, err)
			continue
		}
		if err := a.write(item.name, b); err != nil {
			return err
		}
	}
	return nil
}

// add writes an item about the cluster.
func (a *debugArchive) add(item debugItem) error {
	b, err := a.get(item)
	if err == nil {
		return a.write(item.name, b)
	}
	if a.c.Context.Err() != nil {
		return errInterrupted
	}
	a.miss(item.name, a.cl.classifyError(err))
	return nil
}

// get returns an item's content.
func (a *debugArchive) get(item debugItem) ([]byte, error) {
	ctx, cancel := context.WithTimeout(a.c.Context, debugItemLimit+time.Duration(a.c.Int("seconds"))*time.Second)
	defer cancel()
	a.mu.Lock()
	fmt.Fprintln(a.c.App.ErrWriter, item.name+" ...")
	a.mu.Unlock()
	var b bytes.Buffer
	err := item.get(ctx, &b)
	return b.Bytes(), err
}

func (a *debugArchive) write(name string, b []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.tar.WriteHeader(&tar.Header{Name: "drover-debug/" + name, Mode: 0o600, Size: int64(len(b)), ModTime: a.now}); err != nil {
		return err
	}
	_, err := a.tar.Write(b)
	return err
}

// miss records what could not be had, and why.
func (a *debugArchive) miss(what string, why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.errors = append(a.errors, what+": "+why.Error())
}

// cluster lists the items about the cluster's state.
func (a *debugArchive) cluster() []debugItem {
	return []debugItem{
		apiItem("status.json", a.cl.Status, &droverv1.StatusRequest{}),
		apiItem("servers.json", a.cl.operator.ListServers, &droverv1.ListServersRequest{}),
		apiItem("nodes.json", a.cl.ListNodes, &droverv1.ListNodesRequest{}),
		apiItem("tenants.json", a.cl.ListTenants, &droverv1.ListTenantsRequest{}),
		apiItem("scheduler.json", a.cl.GetScheduler, &droverv1.GetSchedulerRequest{}),
		apiItem("calibration.json", a.cl.Calibration, &droverv1.CalibrationRequest{}),
		apiItem("jobs.json", a.cl.ListJobs, &droverv1.ListJobsRequest{All: true}),
		{"events.json", a.events},
	}
}

// apiItem is the response to a call, as JSON.
func apiItem[Q, R any, M interface {
	*R
	proto.Message
}](name string, call func(context.Context, *connect.Request[Q]) (*connect.Response[R], error), request *Q) debugItem {
	return debugItem{name, func(ctx context.Context, w io.Writer) error {
		res, err := call(ctx, connect.NewRequest(request))
		if err != nil {
			return err
		}
		return printProto(w, M(res.Msg))
	}}
}

func (a *debugArchive) events(ctx context.Context, w io.Writer) error {
	st, err := a.cl.Events(ctx, connect.NewRequest(&droverv1.EventsRequest{Limit: 1000}))
	if err != nil {
		return err
	}
	defer st.Close()
	for st.Receive() {
		if err := printProto(w, st.Msg()); err != nil {
			return err
		}
	}
	return st.Err()
}

func writeMetrics(ctx context.Context, w io.Writer, cl *client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, coordclient.Base+"/metrics", nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: cl.transport}).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the coordinator answered %s", res.Status)
	}
	_, err = io.Copy(w, res.Body)
	return err
}

// daemon lists the items about one process.
func (a *debugArchive) daemon(d debugDaemon) []debugItem {
	items := []debugItem{{d.folder + "/log.jsonl", func(ctx context.Context, w io.Writer) error {
		return monitor(ctx, d.cl, &droverv1.MonitorRequest{Node: d.node, Recent: 1000}, w, true)
	}}}
	if d.node == "" {
		items = append(items, debugItem{d.folder + "/metrics.txt", func(ctx context.Context, w io.Writer) error { return writeMetrics(ctx, w, d.cl) }})
	}
	for _, kind := range []string{"cpu", "heap", "goroutine", "mutex", "block"} {
		items = append(items, debugItem{d.folder + "/" + kind + ".pprof", func(ctx context.Context, w io.Writer) error {
			return writeProfile(ctx, w, d.cl, &droverv1.ProfileRequest{Node: d.node, Kind: kind, Seconds: int32(a.c.Int("seconds"))})
		}})
	}
	return items
}

func writeProfile(ctx context.Context, w io.Writer, cl *client, req *droverv1.ProfileRequest) error {
	st, err := cl.debug.Profile(ctx, connect.NewRequest(req))
	if err != nil {
		return err
	}
	defer st.Close()
	for st.Receive() {
		if _, err := w.Write(st.Msg().GetData()); err != nil {
			return err
		}
	}
	return st.Err()
}
