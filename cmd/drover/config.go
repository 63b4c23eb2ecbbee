package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
)

// configFolder is where the packages' units look for configuration files.
const configFolder = "/etc/drover"

func configCommand() *cli.Command {
	return &cli.Command{
		Name:  "config",
		Usage: "configuration files of the daemons",
		Subcommands: []*cli.Command{
			{
				Name:        "init",
				Usage:       "write the commented configuration file of a daemon",
				Subcommands: []*cli.Command{configInitCommand(coordinatorCommand()), configInitCommand(nodeCommand())},
			},
			{
				Name:        "bundle",
				Usage:       "certificates and configuration of machines, one file for each",
				Subcommands: []*cli.Command{configBundleCommand(coordinatorCommand()), configBundleCommand(nodeCommand())},
			},
			configApplyCommand(),
			{
				Name:      "validate",
				Usage:     "find what is wrong with a configuration file; nothing is changed",
				ArgsUsage: "coordinator|node [FILE]",
				Description: "Settings, scheduler, certificates and addresses are checked as the daemon checks them when it starts. FILE is\n" +
					configFolder + "/coordinator.hcl or node.hcl by default. With -json it prints the settings of the file and the\n" +
					"defaults of all others.",
				Flags:  []cli.Flag{jsonFlag},
				Action: runConfigValidate,
			},
		},
	}
}

// daemonRole is a daemon as its configuration files see it.
type daemonRole struct {
	command       *cli.Command
	check         func(*cli.Context) error // of settings and certificates
	checkSettings func(*cli.Context) error // without what reads files
}

func daemonOf(role string) (daemonRole, error) {
	switch role {
	case "coordinator":
		return daemonRole{coordinatorCommand(), checkCoordinator, checkCoordinatorSettings}, nil
	case "node":
		return daemonRole{nodeCommand(), checkNode, checkNodeSettings}, nil
	default:
		return daemonRole{}, usageErrorf("%q: want coordinator or node", role)
	}
}

func runConfigValidate(c *cli.Context) error {
	a, err := positionalArgs(c, 1, 2, "coordinator|node [FILE]")
	if err != nil {
		return err
	}
	if _, err := daemonOf(a[0]); err != nil {
		return usageErrorf("%w first, as in `drover config validate node FILE`", err)
	}
	file := filepath.Join(configFolder, a[0]+".hcl")
	if len(a) > 1 {
		file = a[1]
	}
	settings, err := validateConfig(a[0], file)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, map[string]any{"daemon": a[0], "file": file, "settings": settingValues(settings)})
	}
	fmt.Fprintf(c.App.Writer, "%s is a valid configuration of a %s\n", file, a[0])
	return nil
}

// validateConfig reads a file as the daemon of the role does, without this
// process's environment, and returns its settings.
func validateConfig(role, file string) (*cli.Context, error) {
	d, err := daemonOf(role)
	if err != nil {
		return nil, err
	}
	return readSettings(d.command, file, d.check)
}

// validateSettings is validateConfig without the files that are named there.
func validateSettings(role, file string) (*cli.Context, error) {
	d, err := daemonOf(role)
	if err != nil {
		return nil, err
	}
	return readSettings(d.command, file, d.checkSettings)
}

// settingValues returns the value of each setting that a configuration file may have, by its name
// there.
func settingValues(c *cli.Context) map[string]any {
	values := map[string]any{}
	for _, f := range fileFlags(c.Command) {
		flag := f.Names()[0]
		value := c.Value(flag)
		switch v := value.(type) {
		case cli.StringSlice:
			value = append([]string{}, v.Value()...) // no null for an empty one
		case time.Duration:
			value = v.String()
		}
		values[settingName(flag)] = value
	}
	return values
}

// readSettings returns the settings of a file also with an error of check.
func readSettings(daemon *cli.Command, file string, check func(*cli.Context) error) (*cli.Context, error) {
	var got *cli.Context
	daemon.Subcommands = nil
	daemon.Action = func(c *cli.Context) error {
		if err := applyConfigFile(c, file); err != nil {
			return err
		}
		got = c
		return check(c)
	}
	withoutEnvironment(daemon)
	app := newApp(strings.NewReader(""), io.Discard, io.Discard)
	for _, f := range app.Flags { // those of the client have the names of the daemon's
		if s, ok := f.(*cli.StringFlag); ok {
			s.EnvVars = nil
		}
	}
	app.Commands = []*cli.Command{daemon}
	err := app.Run([]string{"drover", daemon.Name})
	return got, err
}

// withoutEnvironment has a command take its flags from the command line alone.
func withoutEnvironment(c *cli.Command) {
	for i, f := range c.Flags {
		if s, ok := f.(*cli.StringFlag); ok {
			plain := *s
			plain.EnvVars = nil
			c.Flags[i] = &plain
		}
	}
}

// configInitCommand is `drover config init` for a role: it takes the daemon's own
// flags.
func configInitCommand(daemon *cli.Command) *cli.Command {
	role := daemon.Name
	withoutEnvironment(daemon)
	own := []cli.Flag{
		&cli.StringFlag{Name: "out", Value: filepath.Join(configFolder, role+".hcl"), Usage: "file to write; - for standard output"},
		&cli.BoolFlag{Name: "force", Usage: "replace a file that is there"},
	}
	return &cli.Command{
		Name:  role,
		Usage: "write the configuration file of a " + role,
		Description: "The flags are those of `drover " + role + "`. What they set stands in the file, everything else as a comment with\n" +
			"its default. On a terminal it asks for what most clusters set and no flag did; elsewhere it asks nothing.\n" +
			"The file is checked as the daemon checks it before it is put in place.",
		Flags: append(own, fileFlags(daemon)...),
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			return runConfigInit(c, role)
		},
	}
}

func runConfigInit(c *cli.Context, role string) error {
	out := c.String("out")
	if out != "-" && !c.Bool("force") {
		if _, err := os.Lstat(out); err == nil {
			return fault.New(fault.Exists, "%s is there already: edit it, or replace it with -force", out)
		}
	}
	if err := applyDefaultCertificates(c, role); err != nil {
		return err
	}
	if in, ok := c.App.Reader.(*os.File); ok && isTerminal(in) && isTerminal(c.App.ErrWriter) {
		if err := askSettings(c, role); err != nil {
			return err
		}
	}
	d, err := daemonOf(role)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	writeConfig(&b, d.command, func(f cli.Flag) any {
		if !c.IsSet(f.Names()[0]) {
			return nil
		}
		return flagText(c, f)
	})
	if out == "-" {
		return printConfig(c.App.Writer, role, b.Bytes())
	}
	if err := installConfig(role, out, b.Bytes()); err != nil {
		return err
	}
	place := ""
	if inForce := filepath.Join(configFolder, role+".hcl"); filepath.Clean(out) != inForce {
		place = fmt.Sprintf("move it to %s, which drover-%s.service reads, then ", inForce, role)
	}
	fmt.Fprintf(c.App.Writer, "wrote %s\nnext: `drover doctor -config %s`, then %s`systemctl enable --now drover-%s`\n", out, out, place, role)
	return nil
}

// printConfig checks the file like one that is installed.
func printConfig(w io.Writer, role string, text []byte) error {
	dir, err := os.MkdirTemp("", "drover-config-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := installConfig(role, filepath.Join(dir, role+".hcl"), text); err != nil {
		return err
	}
	_, err = w.Write(text)
	return err
}

// installConfig checks the file under another name and puts it in place.
func installConfig(role, out string, text []byte) error {
	part := out + ".new"
	if err := writeOwned(part, role, text); err != nil {
		return fault.New(fault.Invalid, "%w; make the folder, or name another file with -out", err)
	}
	if _, err := validateConfig(role, part); err != nil {
		text := strings.ReplaceAll(err.Error(), part, out)
		return errors.Join(exitError{exitCode(err), errors.New(text)}, removeFile(part))
	}
	return os.Rename(part, out)
}

// makeFolder creates a folder where there is none, with a mode that no umask narrows: daemons run
// as other users than the one that installs them. Those above it have 0755.
func makeFolder(path string, mode os.FileMode) error {
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := makeFolder(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(path, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// applyDefaultCertificates names the certificates that lie where the manual puts
// them, if there are any and no flag names others.
func applyDefaultCertificates(c *cli.Context, role string) error {
	folder := filepath.Join(configFolder, "tls")
	for flag, file := range map[string]string{"tls-ca": "ca.pem", "tls-cert": role + ".pem", "tls-key": role + ".key"} {
		path := filepath.Join(folder, file)
		if _, err := os.Stat(path); err != nil || c.IsSet(flag) {
			continue
		}
		if err := c.Set(flag, path); err != nil {
			return err
		}
	}
	return nil
}

// A question is one setting that is asked for on a terminal.
type question struct {
	flag, text string
	required   bool
}

var questions = map[string][]question{
	"coordinator": {
		{"listen", "Address for nodes and users on other machines, host:port (empty: this machine only)", false},
		{"operator", "Who may do everything, user/NAME (empty: root on this machine only)", false},
	},
	"node": {
		{"coordinator", "The coordinator, https://host:port or unix:///path", true},
		{"name", "Name of this node (empty: the host name)", false},
		{"rack", "Where it stands, as HDFS names racks (empty: /default-rack)", false},
		{"listen", "Address of this node for the coordinator and other nodes, host:port (empty: this machine only)", false},
		{"namenode", "NameNode, host:port (empty: no HDFS)", false},
	},
}

// maxAnswers bounds how often a required answer is asked for.
const maxAnswers = 3

// askSettings asks for the settings of a role that no flag set.
func askSettings(c *cli.Context, role string) error {
	in := bufio.NewReader(c.App.Reader)
	for _, q := range questions[role] {
		if c.IsSet(q.flag) {
			continue
		}
		answer, err := ask(in, c.App.ErrWriter, q)
		if err != nil {
			return err
		}
		if answer == "" {
			continue
		}
		if err := c.Set(q.flag, answer); err != nil {
			return usageErrorf("-%s: %v", q.flag, err)
		}
	}
	return nil
}

func ask(in *bufio.Reader, out io.Writer, q question) (string, error) {
	for range maxAnswers {
		fmt.Fprintf(out, "%s: ", q.text)
		line, err := in.ReadString('\n')
		if err != nil {
			return "", usageErrorf("no answer (%v); give -%s instead", err, q.flag)
		}
		if line = strings.TrimSpace(line); line != "" || !q.required {
			return line, nil
		}
	}
	return "", usageErrorf("-%s is needed", q.flag)
}

// writeConfig writes every setting of a daemon with its description: with its value if value
// returns one, otherwise as a comment with its default.
func writeConfig(w io.Writer, daemon *cli.Command, value func(cli.Flag) any) {
	fmt.Fprintf(w, "# Configuration of drover %s. A line that begins with # and a setting shows its default.\n", daemon.Name)
	fmt.Fprintf(w, "# Check it: drover config validate %s FILE. What each setting means: drover-%s(1) and docs/how-to/operating.md.\n", daemon.Name, daemon.Name)
	fmt.Fprintf(w, "# In force after: systemctl reload drover-%s (log level, certificates, scheduler) or restart (all).\n", daemon.Name)
	for _, f := range fileFlags(daemon) {
		name := settingName(f.Names()[0])
		usage := ""
		if d, ok := f.(cli.DocGenerationFlag); ok {
			usage = d.GetUsage()
		}
		fmt.Fprintf(w, "\n# %s\n", usage)
		if v := value(f); v != nil {
			fmt.Fprintf(w, "%s = %s\n", name, hclValue(v))
		} else {
			fmt.Fprintf(w, "#%s = %s\n", name, hclValue(defaultOf(f)))
		}
	}
}

// defaultOf is the value that a flag has where nothing sets it.
func defaultOf(f cli.Flag) any {
	switch f := f.(type) {
	case *cli.BoolFlag:
		return f.Value
	case *cli.IntFlag:
		return f.Value
	case *cli.Float64Flag:
		return f.Value
	case *cli.DurationFlag:
		return f.Value
	case *cli.StringFlag:
		return f.Value
	default:
		return []string{}
	}
}

// hclValue returns a value as HCL text.
func hclValue(v any) string {
	switch v := v.(type) {
	case bool, int, float64:
		return fmt.Sprint(v)
	case []string:
		quoted := slices.Clone(v)
		for i, s := range quoted {
			quoted[i] = hclString(s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	default:
		return hclString(fmt.Sprint(v))
	}
}

// hclString quotes a text; HCL would replace ${ and %{.
func hclString(s string) string {
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(strconv.Quote(s))
}
