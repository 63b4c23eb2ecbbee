package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/hdfs"
	hdfsclient "github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/internal/pki"
)

// networkLimit bounds each question to another machine.
const networkLimit = 5 * time.Second

// Bounds of what doctor accepts.
const (
	clockSlack   = 5 * time.Second     // between clocks; a second is the resolution of the question
	clockLimit   = time.Minute         // above it leases and deadlines mean nothing
	expiryNotice = 30 * 24 * time.Hour // before the end of a certificate
)

// checkCertificates checks the certificate files of a daemon as the daemon does, and how long they
// are still valid.
func checkCertificates(f pki.Files, kind pki.Kind, name string, now time.Time) checkResult {
	if f.Cert == "" && f.CA == "" && f.Key == "" {
		return checkResult{"certificates", statusDegraded, "none: only this machine can reach the " + string(kind), certificateCure(f, kind, name)}
	}
	_, pair, _, err := f.Load()
	if err != nil {
		return checkResult{"certificates", statusMissing, err.Error(), certificateCure(f, kind, name)}
	}
	if err := f.Check(kind, name, now); err != nil {
		text, cure := err.Error(), ""
		if at := strings.LastIndex(text, ": "); at >= 0 { // the last colon: a reason in brackets has one too
			text, cure = text[:at], text[at+len(": "):]
		}
		return checkResult{"certificates", statusMissing, text, cure}
	}
	until := pair.Leaf.NotAfter.UTC().Format(time.DateOnly)
	if pair.Leaf.NotAfter.Sub(now) < expiryNotice {
		return checkResult{"certificates", statusDegraded, f.Cert + " ends on " + until, "make a new one with `drover tls cert`, put it in place, `systemctl reload drover-" + string(kind) + "`"}
	}
	return checkResult{"certificates", statusOK, pair.Leaf.Subject.CommonName + ", until " + until, ""}
}

// certificateCure returns how to make the files of a daemon, and where to put them: where the
// settings name them, otherwise where `drover config init` finds them.
func certificateCure(f pki.Files, kind pki.Kind, name string) string {
	folder := filepath.Join(configFolder, "tls")
	cure := fmt.Sprintf("%s as %s, with its key as %s and the authority's certificate as %s", pki.RenewalText(kind, name),
		cmp.Or(f.Cert, filepath.Join(folder, string(kind)+".pem")), cmp.Or(f.Key, filepath.Join(folder, string(kind)+".key")), cmp.Or(f.CA, filepath.Join(folder, "ca.pem")))
	if f.Cert == "" || f.Key == "" || f.CA == "" {
		cure += ", and name them in tls_cert, tls_key and tls_ca"
	}
	return cure
}

// checkListen finds out whether a daemon could have its port.
func checkListen(role, at string, daemons []daemonProcess) checkResult {
	name := "port of " + role
	if at == "" {
		return checkResult{name, statusDegraded, "no listen setting: only this machine can reach the " + role, "set listen = \"ADDRESS:PORT\""}
	}
	if i := slices.IndexFunc(daemons, func(d daemonProcess) bool { return d.role == role }); i >= 0 {
		if !daemons[i].listensAt(at) {
			return checkResult{name, statusDegraded, fmt.Sprintf("%s: the %s that runs (process %d) does not listen there; it was started with other settings", at, role, daemons[i].pid), "systemctl restart drover-" + role}
		}
		return checkResult{name, statusOK, fmt.Sprintf("%s, the %s runs (process %d)", at, role, daemons[i].pid), ""}
	}
	l, err := listenTCP(at)
	if err != nil {
		part := strings.SplitN(strings.TrimPrefix(err.Error(), "-listen "), ": ", 3) // address, what is wrong, cure
		return checkResult{name, statusMissing, strings.Join(part[:min(2, len(part))], ": "), strings.Join(part[min(2, len(part)):], "")}
	}
	l.Close()
	if host, _, err := net.SplitHostPort(at); err == nil && net.ParseIP(host) == nil && host != "localhost" {
		if bound, ok := l.Addr().(*net.TCPAddr); ok && bound.IP.IsLoopback() {
			return checkResult{name, statusMissing, fmt.Sprintf("%s: on this machine %s is %s, which no other machine reaches", at, host, bound.IP),
				fmt.Sprintf("correct the line of %s in /etc/hosts, or set listen to an address of this machine", host)}
		}
	}
	return checkResult{name, statusOK, at + " is free", ""}
}

// checkReachable finds out whether a port on another machine is open.
func checkReachable(ctx context.Context, name, at, cure string) checkResult {
	ctx, cancel := context.WithTimeout(ctx, networkLimit)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", at)
	switch {
	case err == nil:
		conn.Close()
		return checkResult{name, statusOK, at + " answers", ""}
	case errors.Is(err, syscall.ECONNREFUSED):
		return checkResult{name, statusMissing, at + " refuses: nothing listens there, or a firewall rejects", cure}
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded):
		return checkResult{name, statusMissing, at + " does not answer: the machine is down, or a firewall drops", cure}
	default:
		return checkResult{name, statusMissing, err.Error(), cure}
	}
}

// checkProvider finds out whether the OpenID provider of a coordinator can be asked.
func checkProvider(c *cli.Context) checkResult {
	const name = "OpenID provider"
	if _, err := idTokens(c); err != nil {
		return checkResult{name, statusMissing, err.Error(), "correct the settings oidc_issuer, oidc_client_id and oidc_ca"}
	}
	u, err := url.Parse(c.String("oidc-issuer"))
	if err != nil { // idTokens has read it
		return checkResult{name, statusMissing, err.Error(), "oidc_issuer = \"https://HOST\""}
	}
	at := u.Host
	if u.Port() == "" {
		at = net.JoinHostPort(u.Hostname(), "443")
	}
	return checkReachable(c.Context, name, at, "nobody can sign in meanwhile: let this machine reach it, or correct oidc_issuer")
}

// checkCoordinatorPort is checkReachable for the coordinator of a node.
func checkCoordinatorPort(ctx context.Context, address string) checkResult {
	const name = "coordinator"
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		if path, ok := strings.CutPrefix(address, "unix://"); ok {
			if _, err := os.Stat(path); err != nil {
				return checkResult{name, statusMissing, err.Error(), "systemctl start drover-coordinator"}
			}
			return checkResult{name, statusOK, path + " is there", ""}
		}
		return checkResult{name, statusMissing, address + " is no address", "coordinator = \"https://HOST:PORT\""}
	}
	return checkReachable(ctx, name, u.Host, "systemctl start drover-coordinator on its machine, and open TCP port "+u.Port()+" there")
}

// checkClock asks the kernel whether the clock is synchronised, and the coordinator,
// where there is one, what time it has.
func checkClock(ctx context.Context, h *http.Client, base string, now func() time.Time) checkResult {
	const name, cure = "clock", "apt-get install systemd-timesyncd, and timedatectl set-ntp true"
	compared := ""
	if h != nil {
		compared = "; the coordinator does not answer, so its clock was not compared"
		if there, took, err := remoteClock(ctx, h, base, now); err == nil {
			off := now().Add(-took / 2).Sub(there).Abs()
			switch {
			case off > clockLimit:
				return checkResult{name, statusMissing, fmt.Sprintf("%s from the coordinator's: leases, deadlines and certificates go wrong", off.Round(time.Second)), cure + ", on both machines"}
			case off > clockSlack:
				return checkResult{name, statusDegraded, fmt.Sprintf("%s from the coordinator's", off.Round(time.Second)), cure + ", on both machines"}
			}
			compared = ", and as the coordinator's"
		}
	}
	var t unix.Timex
	if state, err := unix.Adjtimex(&t); err != nil || state == unix.TIME_ERROR {
		return checkResult{name, statusDegraded, "not synchronised: nothing keeps it right" + compared, cure}
	}
	return checkResult{name, statusOK, "synchronised" + compared, ""}
}

// remoteClock reads the time of a server from its answer, and how long that took.
func remoteClock(ctx context.Context, h *http.Client, base string, now func() time.Time) (time.Time, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, networkLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/healthz", nil)
	if err != nil {
		return time.Time{}, 0, err
	}
	begun := now()
	res, err := h.Do(req)
	if err != nil {
		return time.Time{}, 0, err
	}
	res.Body.Close()
	at, err := http.ParseTime(res.Header.Get("Date"))
	return at, now().Sub(begun), err
}

// checkNameNode asks NameNodes whether they can be written to.
func checkNameNode(ctx context.Context, nameNodes []string) checkResult {
	ctx, cancel := context.WithTimeout(ctx, 2*networkLimit)
	defer cancel()
	c, err := hdfsclient.New(hdfsclient.Options{NameNodes: nameNodes, User: "drover"})
	if err != nil {
		return checkResult{"NameNode", statusMissing, err.Error(), "namenode = \"HOST:8020\""}
	}
	defer c.Close()
	safe, err := c.InSafeMode(ctx)
	return nameNodeResult(strings.Join(nameNodes, ","), safe, err)
}

func nameNodeResult(at string, safe bool, err error) checkResult {
	const name = "NameNode"
	switch {
	case err == nil && safe, errors.Is(err, hdfs.ErrSafeMode):
		return checkResult{name, statusMissing, at + " is in safe mode: jobs wait, and nothing is written", "wait while it starts; else hdfs dfsadmin -safemode leave, once DataNodes and their disks are right"}
	case err != nil:
		return checkResult{name, statusMissing, at + ": " + err.Error(), "start it, and open its port to this machine"}
	default:
		return checkResult{name, statusOK, at + " answers and can be written to", ""}
	}
}
