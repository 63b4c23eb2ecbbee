package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// A bundle is a tar archive with what one machine needs to be a coordinator or a node: the
// configuration file, ca.pem, the machine's own certificate and key, and ca.crl where the authority has revoked any.
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
			continue // what is wrong with a name, the configuration's check has said
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

// bundleConfig is the configuration of a machine: what the flags set, its name, its address, and where
// its certificates will be.
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

func configApplyCommand() *cli.Command {
	return &cli.Command{
		Name:      "apply",
		Usage:     "make this machine the coordinator or node that a bundle is for, and start it",
		ArgsUsage: "FILE",
		Description: "It puts the files of `drover config bundle` in place, looks at the machine as `drover doctor -quick` does, and enables\n" +
			"and starts the service when nothing is missing. Where something is, it says the cure and starts nothing: run\n" +
			"it again then. A configuration that differs is replaced only with -force.",
		Flags: []cli.Flag{folderFlag, &cli.BoolFlag{Name: "force", Usage: "replace a configuration that differs"}, &cli.BoolFlag{Name: "no-start", Usage: "put the files in place, no more"}},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "FILE")
			if err != nil {
				return err
			}
			return runConfigApply(c, a[0])
		},
	}
}

func runConfigApply(c *cli.Context, file string) error {
	role, files, err := readBundle(file)
	if err != nil {
		return err
	}
	folder := c.String("folder")
	config := filepath.Join(folder, role+".hcl")
	if have, err := os.ReadFile(config); err == nil && !bytes.Equal(have, files[role+".hcl"]) && !c.Bool("force") {
		return fault.New(fault.Exists, "%s is there and differs from that of %s: replace it with -force", config, file)
	}
	if err := installBundle(folder, role, files); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "%s is in place\n", config)
	if c.Bool("no-start") {
		return nil
	}
	if err := newApp(strings.NewReader(""), c.App.Writer, c.App.ErrWriter).RunContext(c.Context, []string{"drover", "doctor", "-quick", "-config", config}); err != nil {
		return exitError{exitCode(err), fmt.Errorf("%w; nothing was started: after the cure run `drover config apply %s` again", err, file)}
	}
	if !fileExists("/run/systemd/system") {
		fmt.Fprintf(c.App.Writer, "next: drover %s -config %s\n", role, config)
		return nil
	}
	for _, verb := range []string{"enable", "restart"} {
		x := exec.CommandContext(c.Context, "systemctl", verb, "drover-"+role)
		x.Stdout, x.Stderr = c.App.Writer, c.App.ErrWriter
		if err := x.Run(); err != nil {
			return fmt.Errorf("systemctl %s drover-%s: %w; journalctl -u drover-%s says why", verb, role, err, role)
		}
	}
	fmt.Fprintf(c.App.Writer, "drover-%s runs\n", role)
	return nil
}

// readBundle returns the role that a bundle is for, and its files by name: exactly those of a bundle.
func readBundle(file string) (role string, files map[string][]byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", nil, fault.New(fault.NotFound, "%w", err)
	}
	defer f.Close()
	return parseBundle(file, f)
}

// parseBundle reads a bundle of that name.
func parseBundle(file string, in io.Reader) (role string, files map[string][]byte, err error) {
	bad := func(why string) error {
		return fault.New(fault.Invalid, "%s is no bundle (%s): `drover config bundle` makes one", file, why)
	}
	files = map[string][]byte{}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", nil, bad(err.Error())
		}
		if h.Typeflag != tar.TypeReg || h.Size > maxBundleFile || len(files) == 5 {
			return "", nil, bad(fmt.Sprintf("%q in it", h.Name))
		}
		body, err := io.ReadAll(io.LimitReader(r, maxBundleFile))
		if err != nil {
			return "", nil, bad(err.Error())
		}
		files[h.Name] = body
	}
	for role := range bundlePorts {
		if files[role+".hcl"] != nil && files["ca.pem"] != nil && files[role+".pem"] != nil && files[role+".key"] != nil {
			if len(files) == 5 && files[bundleCRL] == nil {
				return "", nil, bad("more files than a bundle has")
			}
			return role, files, nil
		}
	}
	return "", nil, bad("it lacks a file")
}

// installBundle puts the files of a bundle in place. Certificates that do not belong together, and a
// configuration with which the daemon would not start, change nothing.
func installBundle(folder, role string, files map[string][]byte) error {
	tlsFolder := filepath.Join(folder, "tls")
	if err := makeTLSFolder(tlsFolder); err != nil {
		return err
	}
	names := []string{"ca.pem", role + ".pem", role + ".key"}
	at := func(name string) string { return filepath.Join(tlsFolder, name) }
	defer func() {
		for _, n := range names {
			_ = os.Remove(at(n) + ".new") // there after an error only
		}
	}()
	for _, n := range names {
		if err := writeOwned(at(n)+".new", role, files[n]); err != nil {
			return err
		}
	}
	now := pki.Files{CA: at(names[0]) + ".new", Cert: at(names[1]) + ".new", Key: at(names[2]) + ".new"}
	if err := now.Check(pki.Kind(role), "", time.Now()); err != nil {
		return err
	}
	newer, err := newerCRL(now, pki.Kind(role), at(bundleCRL), files[bundleCRL])
	if err != nil {
		return err
	}
	if newer {
		names = append(names, bundleCRL)
		if err := writeOwned(at(bundleCRL)+".new", role, files[bundleCRL]); err != nil {
			return err
		}
	}
	if err := checkInstalledConfig(folder, role, files[role+".hcl"]); err != nil {
		return err
	}
	for _, n := range names {
		if err := os.Rename(at(n)+".new", at(n)); err != nil {
			return err
		}
	}
	return installConfig(role, filepath.Join(folder, role+".hcl"), files[role+".hcl"])
}

// newerCRL reports whether a revocation list is newer than that of a file, which may be of another authority or absent.
func newerCRL(f pki.Files, kind pki.Kind, file string, crl []byte) (bool, error) {
	if crl == nil {
		return false, nil
	}
	m, err := f.Open(kind)
	if err != nil {
		return false, err
	}
	if have, err := os.ReadFile(file); err == nil {
		_, err = m.SetCRL(have)
		_ = err // what is no list of this authority is replaced
	}
	newer, err := m.SetCRL(crl)
	if err != nil {
		return false, fmt.Errorf("revocation list of the bundle: %w", err)
	}
	return newer, nil
}

// checkInstalledConfig finds what would be wrong with a configuration once the certificates that still
// have names with .new are in place beside it.
func checkInstalledConfig(folder, role string, text []byte) error {
	d, err := daemonOf(role)
	if err != nil {
		return err
	}
	file := filepath.Join(folder, role+".hcl")
	part := file + ".new"
	if err := os.WriteFile(part, text, 0o644); err != nil {
		return err
	}
	defer os.Remove(part)
	c, err := readSettings(d.command, part, d.checkSettings)
	if err != nil {
		return exitError{exitCode(err), errors.New(strings.ReplaceAll(err.Error(), part, file))}
	}
	tlsFolder, err := os.Stat(filepath.Join(folder, "tls"))
	if err != nil {
		return err
	}
	for flag, name := range map[string]string{"tls-ca": "ca.pem", "tls-cert": role + ".pem", "tls-key": role + ".key"} {
		path := c.String(flag)
		there, err := os.Stat(filepath.Dir(path))
		if err != nil || !os.SameFile(there, tlsFolder) || filepath.Base(path) != name {
			continue // it is not one of the bundle's
		}
		if err := c.Set(flag, path+".new"); err != nil {
			return err
		}
	}
	return d.check(c)
}

// makeTLSFolder creates the folder of certificates as the package does, where there is none.
func makeTLSFolder(path string) error {
	if fileExists(path) {
		return nil
	}
	if err := makeFolder(path, 0o750); err != nil {
		return err
	}
	group, err := packageGroup()
	if err != nil || group < 0 {
		return err
	}
	return os.Chown(path, 0, group)
}

// packageGroup returns the group as which coordinators run where the package made one and root installs, -1 elsewhere.
func packageGroup() (int, error) {
	g, err := user.LookupGroup("drover")
	if err != nil || os.Geteuid() != 0 {
		return -1, nil
	}
	n, err := strconv.Atoi(g.Gid)
	if err != nil {
		return -1, fmt.Errorf("group drover: %w", err)
	}
	return n, nil
}

// writeOwned writes a configuration or a certificate, which everybody can read whatever the umask is, or a key that its
// daemon alone can read: a coordinator runs as the user drover where the package made one.
func writeOwned(path, role string, body []byte) error {
	mode, group := os.FileMode(0o644), -1
	if strings.Contains(filepath.Base(path), ".key") {
		mode = 0o600
		if role == "coordinator" {
			var err error
			if group, err = packageGroup(); err != nil {
				return err
			}
		}
		if group >= 0 {
			mode = 0o640
		}
	}
	if err := removeFile(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	if group >= 0 {
		err = errors.Join(err, f.Chown(0, group))
	}
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}
