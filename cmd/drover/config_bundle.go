package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// A bundle is a tar archive with what one machine needs to be a coordinator or a node: the
// configuration file, ca.pem, the machine's own certificate and key, and ca.crl where the authority
// has revoked any.
const (
	bundleSuffix  = ".bundle"
	bundleCRL     = "ca.crl"
	maxBundleFile = max(1<<20, pki.MaxCRL) // bytes
	maxBundles    = 10_000                 // machines of one call
)

// bundlePorts are the ports where no -listen names one.
var bundlePorts = map[string]string{"coordinator": "7100", "node": "7101"}

// flagsOfOneMachine are the flags whose values differ from machine to machine.
var flagsOfOneMachine = map[string][]string{
	"coordinator": {"listen", "id", "api-address", "peer-listen", "peer-address"},
	"node":        {"listen", "node-address", "name", "storage-address"},
}

// folderFlag names the folder of configuration files on the machine.
var folderFlag = &cli.StringFlag{Name: "folder", Value: configFolder, Usage: "folder of the configuration on that machine"}

// configBundleCommand is `drover config bundle` for a role: it takes the daemon's own flags.
func configBundleCommand(daemon *cli.Command) *cli.Command {
	role := daemon.Name
	withoutEnvironment(daemon)
	own := []cli.Flag{tlsDirFlag, folderFlag, &cli.DurationFlag{Name: "life", Value: pki.CertLifetime, Usage: "validity of the certificates"}}
	return &cli.Command{
		Name:      role,
		Usage:     "what a " + role + " needs, for `drover config apply` on its machine",
		ArgsUsage: "NAME=ADDRESS[,ADDRESS] ...",
		Description: "For each machine it writes NAME" + bundleSuffix + " into the folder of the CA: a certificate for the addresses, and the\n" +
			"configuration that the flags of `drover " + role + "` set. It listens on the first address, port " + bundlePorts[role] + ", unless -listen\n" +
			"says otherwise. Flags with a name or an address of the machine are refused for several machines. A CA and the\n" +
			"certificates of the operators are created where there are none. The file has the machine's key: copy it to nobody else.",
		Flags: append(own, fileFlags(daemon)...),
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, maxBundles, "NAME=ADDRESS[,ADDRESS] ...")
			if err != nil {
				return err
			}
			return runConfigBundle(c, role, a)
		},
	}
}

// bundleMachine is a machine for which a bundle is made.
type bundleMachine struct {
	name      string
	addresses []string
}

func parseBundleMachine(text string) (m bundleMachine, err error) {
	name, list, ok := strings.Cut(text, "=")
	if !ok || name == "" || list == "" || name != path.Base(name) {
		return m, usageErrorf("%q: want NAME=ADDRESS, such as m1=10.0.0.1", text)
	}
	m = bundleMachine{name, strings.Split(list, ",")}
	for _, a := range m.addresses {
		if _, _, err := net.SplitHostPort(a); err == nil || a == "" {
			return m, usageErrorf("%q: want a host name or an address, without a port (-listen has that)", a)
		}
	}
	return m, nil
}

func runConfigBundle(c *cli.Context, role string, args []string) error {
	var machines []bundleMachine
	for _, a := range args {
		m, err := parseBundleMachine(a)
		if err != nil {
			return err
		}
		machines = append(machines, m)
	}
	for _, name := range flagsOfOneMachine[role] {
		if len(machines) > 1 && c.IsSet(name) {
			return usageErrorf("-%s is that of one machine: leave it out for several, or make the bundle of each machine by itself", name)
		}
	}
	for _, m := range machines { // before anything is created
		if err := checkBundleConfig(c, role, m); err != nil {
			return err
		}
	}
	if err := createMissingCertificates(c); err != nil {
		return err
	}
	for _, m := range machines {
		if err := writeBundle(c, role, m); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Fprintf(c.App.Writer, "created %s; on %s: drover config apply %s\n", filepath.Join(c.String("dir"), m.name+bundleSuffix), m.name, m.name+bundleSuffix)
	}
	return nil
}

// createMissingCertificates creates a CA, and certificates of the operators named by flags, where the
// folder has none.
func createMissingCertificates(c *cli.Context) error {
	dir := c.String("dir")
	err := pki.CreateCA(dir, time.Now())
	switch {
	case err == nil:
		fmt.Fprintf(c.App.Writer, "created %s and ca.key, the signing key: keep that off the machines of the cluster\n", filepath.Join(dir, "ca.pem"))
	case !errors.Is(err, fault.Exists):
		return err
	}
	if !slices.ContainsFunc(c.Command.Flags, func(f cli.Flag) bool { return f.Names()[0] == "operator" }) {
		return nil
	}
	for _, o := range c.StringSlice("operator") {
		name, ok := strings.CutPrefix(o, "user/")
		if !ok || name == "" || fileExists(filepath.Join(dir, name+".pem")) {
			continue // problems of a name are reported by the check of the configuration
		}
		if err := pki.IssueCert(dir, pki.CertRequest{Kind: pki.KindUser, Name: name, Lifetime: c.Duration("life")}, time.Now()); err != nil {
			return err
		}
		fmt.Fprintf(c.App.Writer, "created %s and its key: %s\n", filepath.Join(dir, name+".pem"), o)
	}
	return nil
}

func writeBundle(c *cli.Context, role string, m bundleMachine) error {
	dir := c.String("dir")
	text, err := bundleConfig(c, role, m)
	if err != nil {
		return err
	}
	old, err := pki.Issue(dir, pki.CertRequest{Kind: pki.Kind(role), Name: m.name, Hosts: append([]string{m.name}, m.addresses...), Lifetime: c.Duration("life")}, time.Now())
	if err != nil {
		return err
	}
	noteFormer(c, old, m.name, time.Now())
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	type member struct {
		name, from string
		mode       int64
	}
	members := []member{{role + ".hcl", "", 0o644}, {"ca.pem", "ca.pem", 0o644}, {role + ".pem", m.name + ".pem", 0o644}, {role + ".key", m.name + ".key", 0o600}}
	if fileExists(filepath.Join(dir, bundleCRL)) {
		members = append(members, member{bundleCRL, bundleCRL, 0o644})
	}
	for _, f := range members {
		body := text
		if f.from != "" {
			if body, err = os.ReadFile(filepath.Join(dir, f.from)); err != nil {
				return err
			}
		}
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(body)), ModTime: time.Now()}); err != nil {
			return err
		}
		if _, err := w.Write(body); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	out := filepath.Join(dir, m.name+bundleSuffix)
	if err := removeFile(out + ".new"); err != nil {
		return err
	}
	if err := os.WriteFile(out+".new", b.Bytes(), 0o600); err != nil {
		return err
	}
	return os.Rename(out+".new", out)
}

// bundleConfig returns the configuration of a machine: the settings of the flags, its name, its
// address, and where its certificates will be.
func bundleConfig(c *cli.Context, role string, m bundleMachine) ([]byte, error) {
	d, err := daemonOf(role)
	if err != nil {
		return nil, err
	}
	tlsFolder := filepath.Join(c.String("folder"), "tls")
	given := map[string]string{
		"listen": net.JoinHostPort(m.addresses[0], bundlePorts[role]),
		"tls-ca": filepath.Join(tlsFolder, "ca.pem"), "tls-cert": filepath.Join(tlsFolder, role+".pem"), "tls-key": filepath.Join(tlsFolder, role+".key"),
	}
	if host, _, err := net.SplitHostPort(c.String("listen")); role == "node" && err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		given["node-address"] = m.addresses[0]
	}
	given[map[string]string{"coordinator": "id", "node": "name"}[role]] = m.name
	var text bytes.Buffer
	writeConfig(&text, d.command, func(f cli.Flag) any {
		name := f.Names()[0]
		if c.IsSet(name) {
			return flagText(c, f)
		}
		if v, ok := given[name]; ok {
			return v
		}
		return nil
	})
	return text.Bytes(), nil
}

// checkBundleConfig refuses settings with which the machine's daemon would not start.
func checkBundleConfig(c *cli.Context, role string, m bundleMachine) error {
	text, err := bundleConfig(c, role, m)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp("", "drover-config-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(text); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	_, err = validateSettings(role, f.Name())
	return err
}
