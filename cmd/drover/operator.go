package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/audit"
	"github.com/drover-run/drover/coordinator/backup"
	"github.com/drover-run/drover/coordinator/history"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/linesum"
	"github.com/drover-run/drover/jobspec"
)

const (
	defaultCoordinatorData   = "/var/lib/drover/coordinator"
	defaultCoordinatorConfig = configFolder + "/coordinator.hcl"
)

func operatorCommand() *cli.Command {
	return &cli.Command{
		Name:  "operator",
		Usage: "save and restore the coordinator's state, list and change its servers, decide about runs after a restore, repair its log, gather what a developer would ask for",
		Subcommands: []*cli.Command{
			{Name: "snapshot", Usage: "archives of the coordinator's state", Subcommands: []*cli.Command{snapshotSaveCommand(), snapshotInspectCommand(), snapshotRestoreCommand()}},
			{Name: "server", Usage: "the coordinators of the cluster", Subcommands: []*cli.Command{serverListCommand(), serverAddCommand(), serverRemoveCommand(), serverTransferCommand()}},
			runsCommand(),
			repairCommand(),
			debugCommand(),
		},
	}
}

func snapshotSaveCommand() *cli.Command {
	return &cli.Command{
		Name: "save", ArgsUsage: "FILE",
		Usage: "save the state of a running coordinator as an archive",
		Description: "The archive has the facts at one log index, the uploaded files that live jobs need, and the lines of JSON that\n" +
			"`drover sim` replays; not the history of `drover job history` and `drover usage`.\n" +
			"It is read back and checked before FILE gets its name. FILE may not exist yet.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all-files", Usage: "also uploaded files that no live job needs"},
			jsonFlag,
		},
		Action: func(c *cli.Context) error {
			args, err := positionalArgs(c, 1, 1, "FILE")
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			if _, err := os.Lstat(args[0]); err == nil {
				return archiveExists(args[0])
			}
			m, err := saveSnapshot(c, cl, args[0])
			if err != nil {
				return err
			}
			return printManifest(c, args[0], m)
		},
	}
}

func archiveExists(path string) error {
	return fault.New(fault.Exists, "%s exists already: name another file", path)
}

// saveSnapshot receives an archive in a file of its own beside path, which another command may be
// writing too, and gives it the name once it is checked.
func saveSnapshot(c *cli.Context, cl *client, path string) (*backup.Manifest, error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".part-*") // mode 0600
	if err != nil {
		return nil, fault.New(fault.Invalid, "archive: %w", err)
	}
	part := f.Name()
	var m *backup.Manifest
	if err = receiveSnapshot(c, cl, f); err == nil {
		m, err = inspectArchive(part)
	}
	if err == nil {
		err = nameArchive(part, path)
	}
	return m, errors.Join(err, removeIfPresent(part))
}

// nameArchive gives an archive its name, and replaces no file, also none that came to be since the
// command began. The former name is left, where the file system has links.
func nameArchive(part, path string) error {
	err := os.Link(part, path)
	if err == nil {
		return nil
	}
	if _, err := os.Lstat(path); err == nil {
		return archiveExists(path)
	}
	return os.Rename(part, path)
}

func removeIfPresent(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// receiveSnapshot writes the archive that the coordinator sends, durably, and closes f.
func receiveSnapshot(c *cli.Context, cl *client, f *os.File) (err error) {
	defer func() { err = errors.Join(err, f.Close()) }()
	stream, err := cl.operator.SaveSnapshot(c.Context, connect.NewRequest(&droverv1.SaveSnapshotRequest{AllFiles: c.Bool("all-files")}))
	if err != nil {
		return cl.classifyError(err)
	}
	defer stream.Close()
	for stream.Receive() {
		if _, err := f.Write(stream.Msg().GetData()); err != nil {
			return err
		}
	}
	if err := stream.Err(); err != nil {
		return cl.classifyError(err)
	}
	return f.Sync()
}

func inspectArchive(path string) (*backup.Manifest, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.New(fault.Invalid, "archive: %w", err)
	}
	m, err := backup.Read(bufio.NewReaderSize(f, 1<<20), nil)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return m, errors.Join(err, f.Close())
}

func printManifest(c *cli.Context, path string, m *backup.Manifest) error {
	if c.Bool("json") {
		return printJSON(c.App.Writer, m)
	}
	files := "those that live jobs need"
	if m.AllFiles {
		files = "all"
	}
	count := 0
	for _, x := range m.Members {
		if filepath.Dir(x.Name) == "blobs" {
			count++
		}
	}
	pairs := []string{"archive", path, "cluster", m.Cluster, "saved", m.SavedAt.Local().Format("2006-01-02 15:04:05"), "by", "drover " + m.Program,
		"log index", fmt.Sprint(m.Index), "term", fmt.Sprint(m.Term), "jobs", fmt.Sprintf("%d, %d of them live; the last has number %d", m.Jobs, m.LiveJobs, m.LastJob),
		"nodes", fmt.Sprint(m.Nodes), "files", fmt.Sprintf("%d (%s)", count, files), "size", jobspec.FormatSize(m.Size()) + " unpacked",
		"checksums", fmt.Sprintf("right, of %d members", len(m.Members))}
	if n := len(m.MissingFiles); n > 0 {
		pairs = append(pairs, "missing", fmt.Sprintf("%d files of which the store had no whole copy, for example %s", n, m.MissingFiles[0]))
	}
	printPairs(c.App.Writer, pairs...)
	return nil
}

func snapshotInspectCommand() *cli.Command {
	return &cli.Command{
		Name: "inspect", ArgsUsage: "FILE",
		Usage: "check an archive and show what it holds; needs no coordinator",
		Flags: []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			args, err := positionalArgs(c, 1, 1, "FILE")
			if err != nil {
				return err
			}
			m, err := inspectArchive(args[0])
			if err != nil {
				return err
			}
			return printManifest(c, args[0], m)
		},
	}
}

func snapshotRestoreCommand() *cli.Command {
	return &cli.Command{
		Name: "restore", ArgsUsage: "FILE",
		Usage: "restore an archive into an empty data folder; no coordinator may run on it",
		Description: "Start the coordinator on the folder afterwards. Nodes reconnect by themselves: the restored log's term is above\n" +
			"every one that they can have seen. Jobs that were accepted after the archive was saved are unknown, and nodes\n" +
			"freeze their tasks until you decide (drover operator runs); the next job's number is at least a million higher,\n" +
			"so that no such number is given twice.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: configFlag, Usage: "the coordinator's settings, of which data and id are those of the flags that are not set; default: " + defaultCoordinatorConfig + ", where there is one"},
			&cli.StringFlag{Name: "data", Value: defaultCoordinatorData, Usage: "the coordinator's folder, absent or empty"},
			&cli.StringFlag{Name: "id", Value: "c1", Usage: "name of the coordinator (-id): it starts under no other one; of several, the others join it"},
			&cli.Uint64Flag{Name: "seen-term", Usage: "a term that a node's log names as seen, if nodes still refuse the restored coordinator"},
			jsonFlag,
		},
		Action: func(c *cli.Context) error {
			args, err := positionalArgs(c, 1, 1, "FILE")
			if err != nil {
				return err
			}
			return runRestore(c, args[0])
		},
	}
}

func runRestore(c *cli.Context, archive string) error {
	if err := applySettings(c, coordinatorCommand(), defaultCoordinatorConfig, "data", "id"); err != nil {
		return err
	}
	dir := c.String("data")
	o, err := folderOwner(dir)
	if errors.Is(err, os.ErrNotExist) {
		if err := makeFolder(filepath.Dir(dir), 0o755); err != nil { // others than the coordinator's user look below it
			return err
		}
		o, err = defaultOwner(c)
	}
	if err != nil {
		return err
	}
	m, err := backup.Restore(archive, backup.Target{Dir: dir, ID: c.String("id"), SeenTerm: c.Uint64("seen-term")})
	if err != nil {
		return err
	}
	if err := chownTree(dir, o); err != nil {
		return err
	}
	return printManifest(c, archive, m)
}

// owner is whose a folder is; the zero value changes nothing.
type owner struct {
	known    bool
	uid, gid int
}

func folderOwner(dir string) (owner, error) {
	st, err := os.Stat(dir)
	if err != nil {
		return owner{}, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return owner{}, nil
	}
	return owner{true, int(sys.Uid), int(sys.Gid)}, nil
}

// defaultOwner returns the user that the package made for the coordinator, if the folder is that of
// a file of settings.
func defaultOwner(c *cli.Context) (owner, error) {
	u, err := user.Lookup("drover")
	if err != nil || c.String(configFlag) == "" {
		return owner{}, nil // no package made one, or the coordinator runs as somebody else
	}
	uid, err := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	return owner{true, uid, gid}, errors.Join(err, err2)
}

// chownTree gives the files that root created to the user as whom the coordinator runs. systemd
// does so only for a folder that does not belong to that user already.
func chownTree(dir string, o owner) error {
	if !o.known || os.Geteuid() != 0 {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, o.uid, o.gid)
	})
}

func repairCommand() *cli.Command {
	return &cli.Command{
		Name:  "repair",
		Usage: "show damage of a stopped coordinator's log, and with -accept-loss go on without what cannot be read",
		Description: "An archive (drover operator snapshot restore) or another server of the cluster is better: a repair forgets the newest\n" +
			"entries, and with them jobs that clients were told are accepted. The damaged log is moved aside, never removed.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "data", Value: defaultCoordinatorData, Usage: "the coordinator's folder"},
			&cli.BoolFlag{Name: "accept-loss", Usage: "make a log of what can be read"},
			&cli.StringFlag{Name: "alone", Usage: "name of this coordinator, which goes on without the others of its cluster: most of them are lost for good"},
		},
		Action: runRepair,
	}
}

func runRepair(c *cli.Context) error {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	dir := filepath.Join(c.String("data"), "raft")
	d, err := replica.Inspect(dir)
	printDamagedLines(c)
	if err != nil {
		return err
	}
	d.Alone = c.String("alone")
	if len(d.What) == 0 && d.Alone == "" {
		fmt.Fprintf(c.App.Writer, "%s is not damaged: %d entries, the last has index %d\n", dir, d.Last-d.First+1, d.Kept())
		return nil
	}
	for _, w := range d.What {
		fmt.Fprintln(c.App.Writer, "damaged: "+w)
	}
	fmt.Fprintf(c.App.Writer, "can be kept: everything up to entry %d (snapshot up to %d, log %d to %d)\n", d.Kept(), d.Snapshot, d.First, d.Last)
	if d.Alone != "" {
		fmt.Fprintf(c.App.Writer, "server %s goes on alone: what only the others had is lost; none of %s may start on its old folder again\n", d.Alone, serverNames(d.Servers, d.Alone))
	}
	lost := fmt.Sprintf("is lost: entries %d to %d, at least", d.Kept()+1, d.Kept()+d.Lost)
	if d.Lost == 0 {
		lost = "is lost: no entry that is known; there may have been newer ones"
	}
	fmt.Fprintln(c.App.Writer, lost)
	if !c.Bool("accept-loss") {
		return fault.New(fault.Corrupt, "nothing was changed: restore an archive, or repeat this with -accept-loss to go on without what is lost")
	}
	began := time.Now()
	o, err := folderOwner(dir)
	if err != nil {
		return err
	}
	if err := replica.Repair(dir, d); err != nil {
		return err
	}
	if err := chownTree(dir, o); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "repaired in %s; the former log is in %s\n", time.Since(began).Round(time.Millisecond), d.Aside)
	return nil
}

// printDamagedLines names the damaged lines of the JSON files, and the files that cannot be read.
// No job depends on them, so it changes nothing and is no error.
func printDamagedLines(c *cli.Context) {
	damaged, err := audit.Check(filepath.Join(c.String("data"), "audit.jsonl"))
	files, ferr := history.Files(filepath.Join(c.String("data"), "history"))
	err = errors.Join(err, ferr)
	for _, f := range files {
		d, ferr := linesum.CheckFile(f)
		damaged, err = append(damaged, d...), errors.Join(err, ferr)
	}
	for _, d := range damaged {
		fmt.Fprintf(c.App.Writer, "damaged: %s; no job needs it\n", d)
	}
	if err != nil {
		fmt.Fprintf(c.App.Writer, "cannot be read: %s; no job needs it\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// serverNames lists the servers but one.
func serverNames(all []replica.Peer, but string) string {
	var names []string
	for _, p := range all {
		if p.ID != but {
			names = append(names, p.ID)
		}
	}
	return strings.Join(names, ", ")
}
