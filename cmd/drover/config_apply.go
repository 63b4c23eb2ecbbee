package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

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

// newerCRL reports whether a revocation list is newer than that of a file, which may be of another
// authority or absent.
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
		_ = err // a file that is no list of this authority is replaced
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

// packageGroup returns the group as which coordinators run where the package made one and root
// installs, -1 elsewhere.
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

// writeOwned writes a configuration or certificate, readable by everybody whatever the umask, or a
// key that only its daemon can read: a coordinator runs as the user drover if the package created
// that user.
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
