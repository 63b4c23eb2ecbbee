package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/urfave/cli/v2"
	"golang.org/x/oauth2"

	"github.com/drover-run/drover/coordinator/idtoken"
	"github.com/drover-run/drover/internal/fault"
)

// oidcFlags returns the coordinator's flags about a provider of ID tokens.
func oidcFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "oidc-issuer", Usage: "https:// address of an OpenID provider: people whom it knows sign in with its ID tokens ('drover login'); default: none"},
		&cli.StringFlag{Name: "oidc-client-id", Usage: "of this cluster at the provider; tokens for others are refused"},
		&cli.StringFlag{Name: "oidc-claim", Value: "email", Usage: "claim with the name by which tenants list a user; an email must be verified"},
		&cli.StringSliceFlag{Name: "oidc-require", Usage: "claim=value that a token must have, such as hd=example.com, repeatable"},
		&cli.StringFlag{Name: "oidc-ca", Usage: "file with the authorities of the provider's certificate; default: the system's", TakesFile: true},
	}
}

// idTokens returns what verifies ID tokens, nil without a provider.
func idTokens(c *cli.Context) (*idtoken.Verifier, error) {
	h, err := oidcHTTP(c.String("oidc-ca"))
	if err != nil && c.String("oidc-issuer") != "" {
		return nil, err
	}
	return idTokensBy(c, h)
}

// idTokensBy is idTokens with a client of its own for the provider.
func idTokensBy(c *cli.Context, h *http.Client) (*idtoken.Verifier, error) {
	issuer := c.String("oidc-issuer")
	if issuer == "" {
		if c.String("oidc-client-id") != "" {
			return nil, usageErrorf("-oidc-client-id needs -oidc-issuer")
		}
		return nil, nil
	}
	if c.String("listen") == "" {
		return nil, usageErrorf("-oidc-issuer needs -listen: the socket takes no tokens")
	}
	require, err := parseKeyValues("oidc-require", c.StringSlice("oidc-require"))
	if err != nil {
		return nil, err
	}
	return idtoken.New(idtoken.Config{Issuer: issuer, ClientID: c.String("oidc-client-id"), Claim: c.String("oidc-claim"), Require: require, HTTP: h})
}

// oidcHTTP returns a client that trusts the authorities in a file, or those of the system.
func oidcHTTP(ca string) (*http.Client, error) {
	if ca == "" {
		return &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone(), Timeout: time.Minute}, nil
	}
	t := &trustingFile{file: ca}
	if err := t.reload(); err != nil {
		return nil, err
	}
	return &http.Client{Transport: t, Timeout: time.Minute}, nil
}

// trustingFile calls servers that have a certificate of the authorities in a file. It checks
// whether the file changed before each request, of which there are few. While the content is
// invalid, the last valid one counts, as with the daemon's own certificates.
type trustingFile struct {
	file string

	mu   sync.Mutex
	text []byte
	next *http.Transport // of that text
}

func (t *trustingFile) RoundTrip(r *http.Request) (*http.Response, error) {
	t.mu.Lock()
	if err := t.reload(); err != nil {
		slog.Warn("the authorities of the OpenID provider are the former ones", "err", err)
	}
	next := t.next
	t.mu.Unlock()
	return next.RoundTrip(r)
}

// reload reads the file. The caller holds mu, or is the only user of t.
func (t *trustingFile) reload() error {
	b, err := os.ReadFile(t.file)
	if err != nil {
		return fault.New(fault.NotFound, "-oidc-ca: %w", err)
	}
	if bytes.Equal(b, t.text) {
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return fault.New(fault.Invalid, "-oidc-ca: %s holds no certificate", t.file)
	}
	if t.next != nil {
		t.next.CloseIdleConnections() // they were trusted by the former file
	}
	t.text, t.next = b, http.DefaultTransport.(*http.Transport).Clone()
	t.next.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return nil
}

func loginCommand() *cli.Command {
	return &cli.Command{
		Name:  "login",
		Usage: "sign in at the cluster's OpenID provider",
		Description: "Shows an address to open in a browser on this machine, waits until you have signed in there, and writes the ID token\n" +
			"to the file of -token-file, which other commands read. It is good until the provider says, at most a day. The\n" +
			"cluster's operator knows issuer and client ID: they are the coordinator's -oidc-issuer and -oidc-client-id.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "oidc-issuer", Usage: "https:// address of the provider", EnvVars: []string{"DROVER_OIDC_ISSUER"}},
			&cli.StringFlag{Name: "oidc-client-id", Usage: "of the cluster at the provider", EnvVars: []string{"DROVER_OIDC_CLIENT_ID"}},
			&cli.StringFlag{Name: "oidc-ca", Usage: "file with the authorities of the provider's certificate; default: the system's", EnvVars: []string{"DROVER_OIDC_CA"}, TakesFile: true},
			&cli.DurationFlag{Name: "wait", Value: 5 * time.Minute, Usage: "how long to wait for the browser"},
		},
		Action: runLogin,
	}
}

func runLogin(c *cli.Context) error {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	if err := requireFlags(c, "oidc-issuer", "oidc-client-id"); err != nil {
		return err
	}
	file := c.String(tokenFileFlag)
	if file == "" {
		return usageErrorf("-%s is missing: name the file for the token, before the command, or in DROVER_TOKEN_FILE", tokenFileFlag)
	}
	if !strings.HasPrefix(c.String("oidc-issuer"), "https://") {
		return usageErrorf("-oidc-issuer %q: want an https:// address", c.String("oidc-issuer"))
	}
	h, err := oidcHTTP(c.String("oidc-ca"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(c.Context, h), c.Duration("wait"))
	defer cancel()
	text, token, err := signIn(ctx, c, c.String("oidc-issuer"), c.String("oidc-client-id"))
	if err != nil {
		return err
	}
	if err := writeToken(file, text); err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "signed in until %s; the token is in %s\n", token.Expiry.Local().Format(time.DateTime), file)
	return nil
}

// signIn runs the code flow with PKCE. The code comes back to a port of loopback that
// is open as long as it takes; state, nonce and the code's challenge bind it to this run.
func signIn(ctx context.Context, c *cli.Context, issuer, client string) (text string, token *oidc.IDToken, err error) {
	p, err := oidc.NewProvider(ctx, issuer)
	if err != nil {
		return "", nil, fault.New(fault.Unavailable, "the OpenID provider %s: %w", issuer, err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	conf := &oauth2.Config{ClientID: client, Endpoint: p.Endpoint(), RedirectURL: "http://" + l.Addr().String() + loginPath, Scopes: []string{oidc.ScopeOpenID, "email", "profile"}}
	state, nonce, verifier := rand.Text(), rand.Text(), oauth2.GenerateVerifier()
	fmt.Fprintf(c.App.ErrWriter, "open in a browser on this machine:\n%s\n", conf.AuthCodeURL(state, oidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier)))
	code, err := awaitCode(ctx, l, state)
	if err != nil {
		return "", nil, err
	}
	answer, err := conf.Exchange(ctx, code, oauth2.VerifierOption(verifier))
	if err != nil {
		return "", nil, fault.New(fault.Denied, "the OpenID provider %s gives no token: %w", issuer, err)
	}
	text, _ = answer.Extra("id_token").(string)
	token, err = p.VerifierContext(ctx, &oidc.Config{ClientID: client}).Verify(ctx, text)
	if err != nil {
		return "", nil, fault.New(fault.Denied, "the ID token is not believed: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(token.Nonce), []byte(nonce)) != 1 {
		return "", nil, fault.New(fault.Denied, "the ID token was not made for this sign-in")
	}
	return text, token, nil
}

const loginPath = "/callback"

// awaitCode serves the port until the provider has sent the browser there with this run's
// state, and returns the code.
func awaitCode(ctx context.Context, l net.Listener, state string) (string, error) {
	type answer struct{ code, problem string }
	got := make(chan answer, 1)
	s := &http.Server{ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		q := r.URL.Query()
		if r.Method != http.MethodGet || r.URL.Path != loginPath || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(state)) != 1 {
			http.Error(w, "this is no answer to this sign-in", http.StatusBadRequest)
			return
		}
		a := answer{q.Get("code"), q.Get("error")}
		if a.code == "" && a.problem == "" {
			a.problem = "no code"
		}
		select {
		case got <- a:
			fmt.Fprintln(w, "You may close this window.")
		default:
			http.Error(w, "there was an answer already", http.StatusConflict)
		}
	})}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.Shutdown(end) // the browser has its answer
		_ = s.Close()
		<-served
	}()
	select {
	case a := <-got:
		if a.problem != "" {
			return "", fault.New(fault.Denied, "the OpenID provider refused: %s", a.problem)
		}
		return a.code, nil
	case <-ctx.Done():
		return "", fault.New(fault.Unavailable, "nobody signed in: %w", ctx.Err())
	}
}

// writeToken replaces the file, which only its owner may read.
func writeToken(file, text string) error {
	if len(text) >= maxTokenFile {
		return fault.New(fault.Exhausted, "the ID token has %d bytes, at most %d can be used: let the provider leave out claims, such as groups", len(text), maxTokenFile-1)
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".token-*") // mode 0600
	if err != nil {
		return fault.New(fault.Invalid, "-%s: %w", tokenFileFlag, err)
	}
	_, err = f.WriteString(text + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
