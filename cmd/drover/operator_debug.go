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
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"
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
		Description: "The archive has the state of the cluster (servers, nodes, tenants, scheduler, jobs, events), metrics, recent log\n" +
			"records and profiles of the coordinator and of the nodes given. It has no job files, no variables of tasks, no\n" +
			"secrets and no uploaded files. What could not be had is listed in manifest.json.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "output", Usage: "file of the archive, which may not exist yet; default: drover-debug-TIME.tar.gz"},
			&cli.StringSliceFlag{Name: "node", Usage: "include this node's log and profiles, repeatable"},
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
	c      *cli.Context
	cl     *client
	tar    *tar.Writer
	now    time.Time
	errors []string
}

// debugItem is one file of the archive.
type debugItem struct {
	name string
	get  func(ctx context.Context, w io.Writer) error
}

// gather writes all items, then the manifest.
func (a *debugArchive) gather() error {
	items := append(a.cluster(), a.daemon("coordinator", "")...)
	for _, n := range a.c.StringSlice("node") {
		items = append(items, a.daemon("nodes/"+n, n)...)
	}
	for _, item := range items {
		fmt.Fprintln(a.c.App.ErrWriter, item.name+" ...")
		if err := a.add(item); err != nil {
			return err
		}
	}
	return a.add(debugItem{"manifest.json", func(_ context.Context, w io.Writer) error {
		return printJSON(w, map[string]any{"version": version.Version, "time": a.now.UTC().Format(time.RFC3339), "address": a.cl.address(), "missing": a.errors})
	}})
}

func (a *debugArchive) add(item debugItem) error {
	ctx, cancel := context.WithTimeout(a.c.Context, debugItemLimit+time.Duration(a.c.Int("seconds"))*time.Second)
	defer cancel()
	var b bytes.Buffer
	if err := item.get(ctx, &b); err != nil {
		if a.c.Context.Err() != nil {
			return errInterrupted
		}
		a.errors = append(a.errors, item.name+": "+a.cl.classifyError(err).Error())
		return nil
	}
	if err := a.tar.WriteHeader(&tar.Header{Name: "drover-debug/" + item.name, Mode: 0o600, Size: int64(b.Len()), ModTime: a.now}); err != nil {
		return err
	}
	_, err := a.tar.Write(b.Bytes())
	return err
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
		{"metrics.txt", a.metrics},
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

func (a *debugArchive) metrics(ctx context.Context, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, coordclient.Base+"/metrics", nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: a.cl.transport}).Do(req)
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

// daemon lists the items about one process; node is empty for the coordinator.
func (a *debugArchive) daemon(folder, node string) []debugItem {
	items := []debugItem{{folder + "/log.jsonl", func(ctx context.Context, w io.Writer) error {
		return monitor(ctx, a.cl, &droverv1.MonitorRequest{Node: node, Recent: 1000}, w, true)
	}}}
	for _, kind := range []string{"cpu", "heap", "goroutine", "mutex", "block"} {
		items = append(items, debugItem{folder + "/" + kind + ".pprof", func(ctx context.Context, w io.Writer) error {
			return a.profile(ctx, w, &droverv1.ProfileRequest{Node: node, Kind: kind, Seconds: int32(a.c.Int("seconds"))})
		}})
	}
	return items
}

func (a *debugArchive) profile(ctx context.Context, w io.Writer, req *droverv1.ProfileRequest) error {
	st, err := a.cl.debug.Profile(ctx, connect.NewRequest(req))
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
