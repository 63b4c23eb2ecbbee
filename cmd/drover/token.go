package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

const (
	tokenFileFlag = "token-file"
	tokenVariable = "DROVER_TOKEN" // not a flag: others on the machine can read those
	maxTokenFile  = 4 << 10
)

// readToken returns the token in the file of the flag or in the environment, ""
// for none.
func readToken(c *cli.Context) (string, error) {
	path := c.String(tokenFileFlag)
	if path == "" {
		if text := os.Getenv(tokenVariable); strings.TrimSpace(text) != "" {
			return tokenIn(text, tokenVariable)
		}
		return "", nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fault.New(fault.Invalid, "-%s: %w", tokenFileFlag, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", fault.New(fault.Invalid, "-%s: %w", tokenFileFlag, err)
	}
	if st.Mode().IsRegular() && st.Mode().Perm()&0o077 != 0 {
		return "", fault.New(fault.Denied, "others can read the token in %s (mode %04o): `chmod 600 %s`", path, st.Mode().Perm(), path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile))
	if err != nil {
		return "", fault.New(fault.Invalid, "-%s: %w", tokenFileFlag, err)
	}
	return tokenIn(string(b), path)
}

// tokenIn returns the one word of a text. The error does not show the text.
func tokenIn(text, where string) (string, error) {
	token := strings.TrimSpace(text)
	if token == "" || strings.ContainsAny(token, " \n\r\t") {
		return "", fault.New(fault.Invalid, "%s has no token: it is one word, as `drover token create` prints it", where)
	}
	return token, nil
}

func tokenCommand() *cli.Command {
	return &cli.Command{
		Name:        "token",
		Usage:       "tokens for people and programs without certificates",
		Subcommands: []*cli.Command{tokenCreateCommand(), tokenListCommand(), tokenRevokeCommand()},
	}
}

// tokenRights are the values of -right.
var tokenRights = map[string]droverv1.TokenRight{
	"read":    droverv1.TokenRight_TOKEN_RIGHT_READ,
	"submit":  droverv1.TokenRight_TOKEN_RIGHT_SUBMIT,
	"operate": droverv1.TokenRight_TOKEN_RIGHT_OPERATE,
	"all":     droverv1.TokenRight_TOKEN_RIGHT_ALL,
}

func rightText(r droverv1.TokenRight) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "TOKEN_RIGHT_"))
}

func tokenCreateCommand() *cli.Command {
	return &cli.Command{
		Name:  "create",
		Usage: "create a token and print it, once",
		Description: "Its holder may do what the user may, and at most what -right and -tenant leave: read jobs, also submit, also operate\n" +
			"others' jobs, or all, which only a token of an operator has. Give it to commands in a file (-token-file) or in the\n" +
			"environment (DROVER_TOKEN), together with -tls-ca, and no certificate. With -json it prints what drover token list has of\n" +
			"it, and the token unless -out has it.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "user", Usage: "whose rights it has; default: yours"},
			&cli.StringSliceFlag{Name: "tenant", Usage: "it is good for this tenant alone, repeatable; default: all"},
			&cli.StringFlag{Name: "right", Value: "operate", Usage: "read, submit, operate or all"},
			&cli.DurationFlag{Name: "life", Value: 30 * 24 * time.Hour, Usage: "validity, a minute to 366 days"},
			&cli.StringFlag{Name: "note", Usage: "what it is for, shown by 'drover token list'"},
			&cli.StringFlag{Name: "out", Usage: "write it to this new file, mode 0600, instead of printing it", TakesFile: true},
			jsonFlag,
		},
		Action: createToken,
	}
}

func createToken(c *cli.Context) error {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	right, ok := tokenRights[c.String("right")]
	if !ok {
		return usageErrorf("-right %q: want read, submit, operate or all", c.String("right"))
	}
	cl, err := dial(c)
	if err != nil {
		return err
	}
	var out *os.File
	if path := c.String("out"); path != "" { // before a token exists that could not be written
		if out, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return fault.New(fault.Invalid, "-out: %w", err)
		}
		defer out.Close()
	}
	res, err := cl.tokens.CreateToken(c.Context, connect.NewRequest(&droverv1.CreateTokenRequest{User: c.String("user"), Tenants: c.StringSlice("tenant"),
		Right: right, Note: c.String("note"), LifeMs: c.Duration("life").Milliseconds()}))
	if err != nil {
		if out != nil {
			_ = os.Remove(out.Name()) // empty
		}
		return cl.classifyError(err)
	}
	t := res.Msg.Token
	where := "it is shown this once"
	if out != nil {
		if _, err := fmt.Fprintln(out, res.Msg.Text); err != nil {
			return fmt.Errorf("write the token; revoke it with `drover token revoke %s`: %w", t.Id, err)
		}
		where = "it is in " + out.Name() + " and nowhere else"
	}
	if c.Bool("json") {
		if out != nil {
			res.Msg.Text = ""
		}
		return printProto(c.App.Writer, res.Msg)
	}
	fmt.Fprintf(c.App.ErrWriter, "token %s of %s, good until %s; %s\n", t.Id, t.User, unixMSText(t.ExpiresMs), where)
	if out == nil {
		fmt.Fprintln(c.App.Writer, res.Msg.Text)
	}
	return nil
}

func tokenListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "your tokens, or those of all users for an operator",
		Flags: []cli.Flag{jsonFlag},
		Action: show(func(cl *client) method[droverv1.ListTokensRequest, droverv1.ListTokensResponse] {
			return cl.tokens.ListTokens
		}, printTokens),
	}
}

func printTokens(w io.Writer, m *droverv1.ListTokensResponse) {
	rows := make([][]string, 0, len(m.Tokens))
	for _, t := range m.Tokens {
		rows = append(rows, []string{t.Id, t.User, strings.Join(t.Tenants, ","), rightText(t.Right), tokenState(t, time.Now()), t.CreatedBy, t.Note})
	}
	printTable(w, []string{"token", "user", "tenants", "right", "good until", "created by", "note"}, rows)
}

func tokenState(t *droverv1.Token, now time.Time) string {
	switch {
	case t.RevokedMs != 0:
		return "revoked " + unixMSText(t.RevokedMs)
	case now.UnixMilli() >= t.ExpiresMs:
		return "expired " + unixMSText(t.ExpiresMs)
	default:
		return unixMSText(t.ExpiresMs)
	}
}

func tokenRevokeCommand() *cli.Command {
	return &cli.Command{
		Name:      "revoke",
		Usage:     "end a token, and the calls of its holder within seconds",
		ArgsUsage: "TOKEN",
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "TOKEN")
			if err != nil {
				return err
			}
			if strings.HasPrefix(a[0], "drover_") {
				return usageErrorf("want the id of the token, which `drover token list` shows; the token itself belongs into no command line")
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			res, err := cl.tokens.RevokeToken(c.Context, connect.NewRequest(&droverv1.RevokeTokenRequest{Id: a[0]}))
			if err != nil {
				return cl.classifyError(err)
			}
			fmt.Fprintf(c.App.Writer, "token %s of %s is revoked\n", a[0], res.Msg.Token.GetUser())
			return nil
		},
	}
}
