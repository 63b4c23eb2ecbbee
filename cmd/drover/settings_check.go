package main

import (
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/runtime/containerd"
	"github.com/drover-run/drover/scheduler/policies"
)

// checkCoordinator returns what is wrong with a coordinator's settings and certificates. It changes
// nothing.
func checkCoordinator(c *cli.Context) error {
	if err := checkCoordinatorSettings(c); err != nil {
		return err
	}
	if _, err := idTokens(c); err != nil {
		return err
	}
	if c.String("listen") == "" && c.String("peer-listen") == "" && c.String("peer-address") == "" {
		return nil
	}
	return tlsFiles(c).Check(pki.KindCoordinator, "", time.Now())
}

// initialPolicy returns the parameters of the policy that -scheduler and -set choose, and an error
// if there is none such.
func initialPolicy(c *cli.Context) (map[string]string, error) {
	params, err := parseParams(c.StringSlice("set"))
	if err != nil {
		return nil, err
	}
	name := c.String("scheduler")
	i, err := policies.Get(name)
	switch {
	case err != nil: // its text names policies for simulations too
		return nil, usageErrorf("%s: unknown scheduler %q: use one of %s", settingName("scheduler"), name, strings.Join(livePolicies(), ", "))
	case i.SimOnly:
		return nil, usageErrorf("%s: scheduler %q needs knowledge of the future: it works only in simulations", settingName("scheduler"), name)
	}
	if _, err := policies.New(name, params); err != nil {
		return nil, usageErrorf("%s: %v", settingName("scheduler"), err)
	}
	return params, nil
}

// livePolicies returns the names of the policies that a cluster can have.
func livePolicies() []string {
	return slices.DeleteFunc(policies.Names(), func(name string) bool {
		i, err := policies.Get(name)
		return err != nil || i.SimOnly
	})
}

// checkCoordinatorSettings is checkCoordinator without what reads files, which may be on another
// machine.
func checkCoordinatorSettings(c *cli.Context) error {
	if _, err := initialPolicy(c); err != nil {
		return err
	}
	for _, o := range c.StringSlice("operator") {
		if kind, name, ok := strings.Cut(o, "/"); !ok || kind != string(pki.KindUser) || name == "" {
			return usageErrorf("-operator %q: want the name of a user's certificate, user/%s", o, o)
		}
	}
	if _, err := idTokensBy(c, http.DefaultClient); err != nil {
		return err
	}
	if share := c.Float64("frozen-share"); !(share > 0 && share <= 1) { // NaN is refused too
		return usageErrorf("-frozen-share %g: want more than 0 and at most 1", share)
	}
	if c.Duration("lease") < time.Second {
		return usageErrorf("-lease %s: want at least 1s", c.Duration("lease"))
	}
	for _, size := range []func(*cli.Context) (int64, error){blobQuota, historySize, diskReserve} {
		if _, err := size(c); err != nil {
			return err
		}
	}
	if err := checkLogLevel(c); err != nil {
		return err
	}
	servers, err := initialServers(c)
	if err != nil {
		return err
	}
	for _, at := range c.StringSlice("join") {
		if err := checkHostPort("-join", at); err != nil {
			return err
		}
	}
	if c.String("peer-listen") == "" && (len(c.StringSlice("servers")) > 0 || len(c.StringSlice("join")) > 0 || c.Bool("bootstrap")) {
		return usageErrorf("-servers, -join and -bootstrap are of a cluster of coordinators: set -peer-listen too")
	}
	for _, flag := range []string{"listen", "peer-listen", "peer-address"} {
		if at := c.String(flag); at != "" {
			if err := checkHostPort("-"+flag, at); err != nil {
				return err
			}
		}
	}
	return checkServers(c, servers)
}

// checkServers returns what is wrong with the list of servers, like the daemon after it has bound
// its port for the others. A port that is chosen then is unknown here.
func checkServers(c *cli.Context, servers []replica.Peer) error {
	listen := c.String("peer-listen")
	if listen == "" || c.String("peer-address") == "" && strings.HasSuffix(listen, ":0") {
		return nil
	}
	return coordinator.CheckServers(c.String("id"), peerAddress(c, listen), servers, c.Bool("bootstrap"))
}

// sizeFlag returns the size in a flag.
func sizeFlag(c *cli.Context, name string) (int64, error) {
	size, err := jobspec.ParseSize(c.String(name))
	if err != nil {
		return 0, usageErrorf("-%s: %w", name, err)
	}
	return size, nil
}

// blobQuota returns -blob-quota, which is not 0.
func blobQuota(c *cli.Context) (int64, error) {
	quota, err := sizeFlag(c, "blob-quota")
	if err == nil && quota == 0 {
		err = usageErrorf("-blob-quota %q: want a size such as 20GiB", c.String("blob-quota"))
	}
	return quota, err
}

// historySize returns -history-size.
func historySize(c *cli.Context) (int64, error) { return sizeFlag(c, "history-size") }

// diskReserve returns -disk-reserve as coordinator.Config has it: 0 for the default, -1 for none.
func diskReserve(c *cli.Context) (int64, error) {
	if c.String("disk-reserve") == "" {
		return 0, nil
	}
	return sizeOrNone(c, "disk-reserve")
}

// keepLogsSize returns -keep-logs-size as node.Config has it: -1 for none.
func keepLogsSize(c *cli.Context) (int64, error) { return sizeOrNone(c, "keep-logs-size") }

// sizeOrNone returns the size in a flag, -1 for a size of 0.
func sizeOrNone(c *cli.Context, name string) (int64, error) {
	size, err := sizeFlag(c, name)
	if err == nil && size == 0 {
		size = -1
	}
	return size, err
}

// ociRuntime returns -oci-runtime as containerd.Config has it.
func ociRuntime(c *cli.Context) (string, error) {
	switch name := c.String("oci-runtime"); name {
	case "auto":
		return "", nil
	case "runc":
		return containerd.RuncOnly, nil
	default:
		return "", usageErrorf("-oci-runtime %q: want auto or runc", name)
	}
}

// initialServers are the servers in -servers, each ID=HOST:PORT.
func initialServers(c *cli.Context) ([]replica.Peer, error) {
	var out []replica.Peer
	for _, text := range c.StringSlice("servers") {
		id, at, ok := strings.Cut(text, "=")
		if !ok || id == "" {
			return nil, usageErrorf("-servers %q: want ID=HOST:PORT, such as c1=10.0.0.1:7102", text)
		}
		if err := checkHostPort("-servers", at); err != nil {
			return nil, err
		}
		out = append(out, replica.Peer{ID: id, Address: at})
	}
	return out, nil
}

// checkNode returns what is wrong with a node's settings and certificates. It changes nothing.
func checkNode(c *cli.Context) error {
	if err := checkNodeSettings(c); err != nil {
		return err
	}
	remote := slices.ContainsFunc(splitList(c.String("coordinator")), func(at string) bool { return !isSocket(at) })
	if !remote && tlsFiles(c).Cert == "" {
		return nil
	}
	name, err := nodeName(c)
	if err != nil {
		return err
	}
	return tlsFiles(c).Check(pki.KindNode, name, time.Now())
}

// isSocket reports whether the address of a coordinator is a socket on this machine.
func isSocket(at string) bool {
	path, ok := strings.CutPrefix(at, "unix://")
	return ok && path != ""
}

// checkNodeSettings is checkNode without what reads files, which may be on another machine.
func checkNodeSettings(c *cli.Context) error {
	address := c.String("coordinator")
	if address == "" {
		return usageErrorf("the node daemon needs -coordinator https://host:port (verbs: %s)", strings.Join(nodeVerbs(), ", "))
	}
	if r := c.Int("reserve"); r < 1 || r > 90 {
		return usageErrorf("-reserve %d: want 1 to 90 percent", r)
	}
	if _, err := keepLogsSize(c); err != nil {
		return err
	}
	if _, err := ociRuntime(c); err != nil {
		return err
	}
	if _, err := nodeFilesConfig(c); err != nil {
		return err
	}
	if err := checkLogLevel(c); err != nil {
		return err
	}
	if at := c.String("listen"); at != "" {
		if err := checkHostPort("-listen", at); err != nil {
			return err
		}
		if _, _, err := advertisedHost(c); err != nil {
			return err
		}
	} else if c.String("node-address") != "" {
		return usageErrorf("-node-address is the address of the port of -listen: set -listen too")
	}
	for _, at := range splitList(c.String("namenode")) {
		if err := checkHostPort("-namenode", at); err != nil {
			return err
		}
	}
	for _, at := range c.StringSlice("allow-namenode") {
		if at == "*" {
			continue
		}
		if err := checkHostPort("-allow-namenode", at); err != nil {
			return err
		}
	}
	if _, err := nodeName(c); err != nil {
		return err
	}
	for _, at := range splitList(address) {
		if isSocket(at) {
			continue
		}
		if u, err := url.Parse(at); err != nil || u.Scheme != "https" || u.Host == "" {
			return usageErrorf("-coordinator %q: want https://host:port or unix:///path, several separated by commas", at)
		}
	}
	return nil
}

// nodeVerbs returns the names of the subcommands of `drover node`. Without a subcommand, `drover
// node` starts the daemon.
func nodeVerbs() (names []string) {
	for _, c := range nodeCommand().Subcommands {
		names = append(names, c.Name)
	}
	return names
}

// nodeName is the node's name: the host's where none is set.
func nodeName(c *cli.Context) (string, error) {
	if name := c.String("name"); name != "" {
		return name, nil
	}
	return os.Hostname()
}

// checkHostPort returns an error unless at is host:port.
func checkHostPort(flag, at string) error {
	_, port, err := net.SplitHostPort(at)
	if err == nil {
		if n, e := strconv.Atoi(port); e != nil || n < 0 || n > 65535 {
			return usageErrorf("%s %q: want host:port, with a port from 0 to 65535", flag, at)
		}
		return nil
	}
	return usageErrorf("%s %q: want host:port", flag, at)
}

func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}
