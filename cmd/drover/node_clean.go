package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/containerd"
)

// cleanLimit bounds all of `drover node clean`, cleanDeleteLimit one container.
const (
	cleanLimit       = 10 * time.Minute
	cleanDeleteLimit = time.Minute
)

// defaultNodeConfig is the file that the package's unit reads.
const defaultNodeConfig = configFolder + "/node.hcl"

func nodeCleanCommand() *cli.Command {
	return &cli.Command{
		Name:  "clean",
		Usage: "end all tasks of this machine and remove their containers, images and secrets",
		Description: "For a machine that leaves the cluster: what tasks left in containerd goes, and secrets in memory. Stop the node daemon first, which\n" +
			"would start them again; better still drain the node. The folder of -data stays. Removing the Debian package does\n" +
			"this by itself.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: configFlag, Usage: "the node's settings, of which data and containerd are those of the flags that are not set; default: " + defaultNodeConfig + ", where there is one"},
			&cli.StringFlag{Name: "data", Value: "/var/lib/drover/node", Usage: "folder of the daemon"},
			&cli.StringFlag{Name: "containerd", Value: defaultContainerd, Usage: "containerd's socket"},
		},
		Action: runNodeClean,
	}
}

func runNodeClean(c *cli.Context) error {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	if err := applySettings(c, nodeCommand(), defaultNodeConfig, "data", "containerd"); err != nil {
		return err
	}
	data, err := filepath.Abs(c.String("data"))
	if err != nil {
		return err
	}
	if err := store.Check(filepath.Join(data, node.StoreFile)); errors.Is(err, fault.Unavailable) {
		return fault.New(fault.Conflict, "the node daemon runs, and would start the tasks again: `systemctl stop drover-node` first")
	}
	return errors.Join(cleanContainerd(c), os.RemoveAll(node.SecretFolder(data)))
}

// cleanContainerd is cleanEngine for containerd.
func cleanContainerd(c *cli.Context) error {
	// Asked here, or the client would wait for a containerd that is not installed.
	conn, err := net.DialTimeout("unix", c.String("containerd"), 5*time.Second)
	if err != nil {
		return containerdError(err)
	}
	conn.Close()
	d, err := containerd.New(containerd.Config{Address: c.String("containerd")})
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(c.Context, cleanLimit)
	defer cancel()
	return cleanEngine(ctx, d, c.App.Writer)
}

// containerdError says what to do about a socket of containerd that cannot be opened.
func containerdError(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fault.New(fault.Denied, "containerd: %w; drover node clean needs root", err)
	}
	return fault.New(fault.Unavailable, "containerd: %w; start it, or name its socket with -containerd", err)
}

// cleanableEngine is what cleanEngine needs of a driver.
type cleanableEngine interface {
	List(context.Context) ([]runtime.Status, error)
	Delete(ctx context.Context, id string) error
	Leftovers(context.Context) ([]runtime.Leftover, error)
	ListImages(context.Context) ([]runtime.Image, error)
	Remove(ctx context.Context, digest string) error
	ReleaseImports(context.Context) error
}

// cleanEngine removes every container and image of Drover. At the end it names those that could not
// be removed.
func cleanEngine(ctx context.Context, d cleanableEngine, w io.Writer) error {
	all, err := d.List(ctx)
	if err != nil {
		return err
	}
	var ids []string
	for _, s := range all {
		ids = append(ids, s.ID)
	}
	left, err := d.Leftovers(ctx)
	if err != nil {
		return err
	}
	for _, l := range left {
		if !l.Listed {
			ids = append(ids, l.ID)
		}
	}
	var failed []error
	var containers, removedImages int // that are removed
	for _, id := range ids {
		limited, cancel := context.WithTimeout(ctx, cleanDeleteLimit)
		switch err := d.Delete(limited, id); {
		case err == nil:
			containers++
		case !errors.Is(err, fault.NotFound): // it is not gone either
			failed = append(failed, fmt.Errorf("container %s: %w", id, err))
		}
		cancel()
	}
	images, err := d.ListImages(ctx)
	if err != nil {
		failed = append(failed, err)
	}
	for _, i := range images {
		if err := d.Remove(ctx, i.Digest); err != nil {
			failed = append(failed, fmt.Errorf("image %s: %w", i.Digest, err))
			continue
		}
		removedImages++
	}
	if err := d.ReleaseImports(ctx); err != nil {
		failed = append(failed, err)
	}
	fmt.Fprintf(w, "removed %s and %s; %d could not be removed\n", countText(containers, "container"), countText(removedImages, "image"), len(failed))
	return errors.Join(failed...)
}

var _ cleanableEngine = (*containerd.Driver)(nil)
