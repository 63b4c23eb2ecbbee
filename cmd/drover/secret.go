package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/secrets"
	"github.com/drover-run/drover/internal/fault"
)

func secretCommand() *cli.Command {
	return &cli.Command{
		Name:  "secret",
		Usage: "secrets of tenants, stored encrypted",
		Description: "A job names one by `secret \"VARIABLE\" { secret = \"NAME\" }`. The coordinator encrypts values with a key from a file\n" +
			"of its operator, gives them to nodes with the tasks that may have them, and shows them to nobody.",
		Subcommands: []*cli.Command{secretPutCommand(), secretListCommand(), secretVersionsCommand(), secretDeleteCommand(), secretKeyCommand(), secretRotateCommand()},
	}
}

func tenantFlag() cli.Flag {
	return &cli.StringFlag{Name: "tenant", Value: facts.DefaultTenant, Usage: "whose secret it is"}
}

func secretPutCommand() *cli.Command {
	return &cli.Command{
		Name:      "put",
		Usage:     "store a value as the next version of a secret",
		ArgsUsage: "NAME",
		Description: "The value comes from standard input or a file, never from the command line. One line break at its end is left out.\n" +
			"Tasks that start from now on get it, unless their job names a version. Needs the right to operate in the tenant.",
		Flags: []cli.Flag{tenantFlag(), &cli.StringFlag{Name: "file", Usage: "file with the value; default: standard input", TakesFile: true}, jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "NAME")
			if err != nil {
				return err
			}
			value, err := readSecretValue(c)
			if err != nil {
				return err
			}
			defer clear(value)
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.secrets.PutSecret(c.Context, connect.NewRequest(&droverv1.PutSecretRequest{Tenant: c.String("tenant"), Name: a[0], Value: value}))
			if err != nil {
				return cl.classifyError(err)
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, res.Msg)
			}
			fmt.Fprintf(c.App.Writer, "secret %s of tenant %s, version %d\n", a[0], c.String("tenant"), res.Msg.Version)
			return nil
		},
	}
}

// readSecretValue reads a value from -file or standard input. It does not show what is typed at a
// terminal.
func readSecretValue(c *cli.Context) ([]byte, error) {
	in := c.App.Reader
	if path := c.String("file"); path != "" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fault.New(fault.Invalid, "-file: %w", err)
		}
		defer f.Close()
		in = f
	} else if f, ok := in.(*os.File); ok {
		if show, err := hideInput(f); err == nil {
			fmt.Fprint(c.App.ErrWriter, "value, then a line break and Ctrl-D (it is not shown): ")
			defer func() { show(); fmt.Fprintln(c.App.ErrWriter) }()
		}
	}
	value, err := io.ReadAll(io.LimitReader(in, facts.MaxSecretValue+2))
	if err != nil {
		return nil, fault.New(fault.Invalid, "the value: %w", err)
	}
	value = bytes.TrimSuffix(value, []byte("\n"))
	if len(value) == 0 || len(value) > facts.MaxSecretValue {
		return nil, fault.New(fault.Invalid, "a secret has 1 byte to %d KiB", facts.MaxSecretValue>>10)
	}
	return value, nil
}

// makeDevKey makes the key of a coordinator's secrets, unless there is one.
func makeDevKey(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("-data: %w", err)
	}
	path := filepath.Join(dir, coordinator.SecretKeyFile)
	if _, err := secrets.Load(path); !errors.Is(err, fault.NotFound) {
		return err
	}
	_, err := secrets.AddKey(path)
	return err
}

// noCoreDumps keeps secrets in the memory of a daemon, and of its child processes, off the disk if
// it crashes. Lowering a limit needs no right.
func noCoreDumps() { _ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) }

// hideInput stops a terminal from showing what is typed, until show is called. An error means that
// f is no terminal.
func hideInput(f *os.File) (show func(), err error) {
	fd := int(f.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	hidden := *old
	hidden.Lflag &^= unix.ECHO
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, old) }, unix.IoctlSetTermios(fd, unix.TCSETS, &hidden)
}

func listSecrets(c *cli.Context) (*droverv1.ListSecretsResponse, error) {
	cl, err := dial(c)
	if err != nil {
		return nil, err
	}
	res, err := cl.secrets.ListSecrets(c.Context, connect.NewRequest(&droverv1.ListSecretsRequest{Tenant: c.String("tenant")}))
	if err != nil {
		return nil, cl.classifyError(err)
	}
	return res.Msg, nil
}

func secretListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "the secrets of a tenant, without their values",
		Flags: []cli.Flag{tenantFlag(), jsonFlag},
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			list, err := listSecrets(c)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, list)
			}
			var rows [][]string
			for _, s := range list.Secrets {
				v := s.Versions[len(s.Versions)-1]
				rows = append(rows, []string{s.Name, strconv.Itoa(int(v.Version)), strconv.Itoa(len(s.Versions)), unixMSText(v.CreatedMs), v.CreatedBy})
			}
			printTable(c.App.Writer, []string{"secret", "newest", "versions", "put", "by"}, rows)
			return nil
		},
	}
}

func secretVersionsCommand() *cli.Command {
	return &cli.Command{
		Name:      "versions",
		Usage:     "the versions of a secret, without their values",
		ArgsUsage: "NAME",
		Flags:     []cli.Flag{tenantFlag(), jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "NAME")
			if err != nil {
				return err
			}
			list, err := listSecrets(c)
			if err != nil {
				return err
			}
			for _, s := range list.Secrets {
				if s.Name != a[0] {
					continue
				}
				if c.Bool("json") {
					return printProto(c.App.Writer, s)
				}
				var rows [][]string
				for _, v := range s.Versions {
					rows = append(rows, []string{strconv.Itoa(int(v.Version)), unixMSText(v.CreatedMs), v.CreatedBy, v.Key})
				}
				printTable(c.App.Writer, []string{"version", "put", "by", "key"}, rows)
				return nil
			}
			return fault.New(fault.NotFound, "tenant %q has no secret %q: `drover secret list -tenant %s` shows them", c.String("tenant"), a[0], c.String("tenant"))
		},
	}
}

func secretDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:        "delete",
		Usage:       "delete a version of a secret, or all of it",
		ArgsUsage:   "NAME",
		Description: "Tasks that need it and have not started fail. Needs the right to operate in the tenant.",
		Flags: []cli.Flag{tenantFlag(), &cli.UintFlag{Name: "version", Usage: "the one to delete"},
			&cli.BoolFlag{Name: "all", Usage: "delete all versions"}},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "NAME")
			if err != nil {
				return err
			}
			if c.IsSet("version") && c.Uint("version") == 0 || c.Uint("version") > 1<<31 {
				return usageErrorf("-version: versions are numbers from 1 on")
			}
			if c.IsSet("version") == c.Bool("all") {
				return usageErrorf("give either -version, or -all to delete all versions of %s", a[0])
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.secrets.DeleteSecret(c.Context, connect.NewRequest(&droverv1.DeleteSecretRequest{Tenant: c.String("tenant"), Name: a[0], Version: uint32(c.Uint("version"))}))
			if err != nil {
				return cl.classifyError(err)
			}
			fmt.Fprintf(c.App.Writer, "deleted %d versions of secret %s of tenant %s\n", res.Msg.Versions, a[0], c.String("tenant"))
			return nil
		},
	}
}

func secretKeyCommand() *cli.Command {
	return &cli.Command{
		Name:      "key",
		Usage:     "add a new key to a coordinator's key file, which is made if it is missing",
		ArgsUsage: "FILE",
		Description: "Run it as the coordinator's user on its machine; the coordinator reads the file again by itself. Copy the file to\n" +
			"the other coordinators of the cluster before `drover secret rotate`, which encrypts all secrets with the new key.\n" +
			"Without the file no secret can be decrypted: keep a copy apart from the backups of the coordinator.",
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "FILE")
			if err != nil {
				return err
			}
			path, err := filepath.Abs(a[0])
			if err != nil {
				return err
			}
			id, err := secrets.AddKey(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.App.Writer, "key %s added to %s\n", id, path)
			return nil
		},
	}
}

func secretRotateCommand() *cli.Command {
	return &cli.Command{
		Name:  "rotate",
		Usage: "encrypt all secrets with the newest key of the coordinator's key file",
		Description: "For operators. It may be repeated. When it has succeeded, older keys are needed only for backups from before:\n" +
			"remove their lines from the key file of each coordinator.",
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.secrets.RotateSecrets(c.Context, connect.NewRequest(&droverv1.RotateSecretsRequest{}))
			if err != nil {
				return cl.classifyError(err)
			}
			fmt.Fprintf(c.App.Writer, "%d of %d versions encrypted again, with key %s\n", res.Msg.Rotated, res.Msg.Versions, res.Msg.Key)
			return nil
		},
	}
}
