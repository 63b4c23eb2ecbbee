package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/urfave/cli/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/drover-run/drover/jobspec"
)

// A daemon's configuration file holds its flags: an attribute for each, with underscores for
// dashes. The command line and the environment override the file.

// configFlag names the file.
const configFlag = "config"

func newConfigFlag(role string) cli.Flag {
	return &cli.StringFlag{Name: configFlag, Usage: "file with these settings, as 'drover config init " + role + "' writes it; flags override it"}
}

// maxConfigBytes bounds a configuration file.
const maxConfigBytes = 1 << 20

// withConfig has a daemon's action see the settings of its configuration file.
func withConfig(action cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		if file := c.String(configFlag); file != "" {
			if err := applyConfigFile(c, file); err != nil {
				return err
			}
		}
		return action(c)
	}
}

// applyConfigFile sets the flags that a file has and neither command line nor
// environment set.
func applyConfigFile(c *cli.Context, file string) error {
	settings, err := readConfigFile(c.Command, file)
	if err != nil {
		return err
	}
	for _, s := range settings {
		if c.IsSet(s.flag) {
			continue
		}
		if err := c.Set(s.flag, s.value); err != nil {
			return usageErrorf("%s: %s: %v", s.where, settingName(s.flag), err)
		}
	}
	return nil
}

// applySettings sets those flags of a command that are also settings of a daemon and are not given,
// as in the daemon's file: that of -config, otherwise the usual one if it exists.
func applySettings(c *cli.Context, daemon *cli.Command, usual string, flags ...string) error {
	file := c.String(configFlag)
	if file == "" {
		if file = usual; !fileExists(file) {
			return nil
		}
	}
	settings, err := readConfigFile(daemon, file)
	if err != nil {
		return err
	}
	if err := c.Set(configFlag, file); err != nil {
		return err
	}
	for _, s := range settings {
		if slices.Contains(flags, s.flag) && !c.IsSet(s.flag) {
			if err := c.Set(s.flag, s.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// setting is one attribute of a configuration file, as its flag takes it.
type setting struct {
	flag, value, where string
}

func settingName(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// fileFlags are the flags of a daemon that its file may hold.
func fileFlags(c *cli.Command) []cli.Flag {
	return slices.DeleteFunc(slices.Clone(c.Flags), func(f cli.Flag) bool {
		return f.Names()[0] == configFlag || f.Names()[0] == "help"
	})
}

// readConfigFile reads the file of a daemon's command, in the order of its lines.
func readConfigFile(daemon *cli.Command, file string) ([]setting, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, usageErrorf("configuration: %v; `drover config init %s` writes one", err, daemon.Name)
	}
	if info.Size() > maxConfigBytes {
		return nil, usageErrorf("configuration %s: %d bytes, at most %d: is it the right file?", file, info.Size(), maxConfigBytes)
	}
	src, err := os.ReadFile(file)
	if err != nil {
		return nil, usageErrorf("configuration: %v", err)
	}
	if len(bytes.TrimSpace(src)) == 0 { // one that keeps every default has comments, as `drover config init` writes them
		return nil, usageErrorf("configuration %s is empty: its text was lost, or never written; restore it, or have `drover config init %s -force -out %s` write one",
			file, daemon.Name, file)
	}
	settings, err := parseConfig(daemon, file, src)
	if other := wrongFile("", file, src); err != nil && other != nil {
		return nil, usageErrorf("%w", other)
	}
	return settings, err
}

// parseConfig reads the text of such a file.
func parseConfig(daemon *cli.Command, file string, src []byte) ([]setting, error) {
	parsed, diags := hclsyntax.ParseConfig(src, file, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diagnosticsError(diags)
	}
	attrs, diags := parsed.Body.JustAttributes()
	if diags.HasErrors() {
		return nil, diagnosticsError(diags)
	}
	list := make([]*hcl.Attribute, 0, len(attrs))
	for _, a := range attrs {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b *hcl.Attribute) int { return a.Range.Start.Byte - b.Range.Start.Byte })
	var settings []setting
	for _, a := range list {
		s, err := readSetting(daemon, a)
		if err != nil {
			return nil, err
		}
		settings = append(settings, s)
	}
	return settings, nil
}

func diagnosticsError(diags hcl.Diagnostics) error { return usageErrorf("%s", diagnosticsText(diags)) }

// diagnosticsText is the first problem, on one line, and how many more there are.
func diagnosticsText(diags hcl.Diagnostics) string {
	d := diags.Errs()[0]
	var first *hcl.Diagnostic
	text := d.Error()
	if errors.As(d, &first) && first.Subject != nil {
		text = fmt.Sprintf("%s:%d: %s; %s", first.Subject.Filename, first.Subject.Start.Line, first.Summary, first.Detail)
	}
	if more := len(diags.Errs()) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return strings.ReplaceAll(text, "\n", " ")
}

func readSetting(daemon *cli.Command, a *hcl.Attribute) (setting, error) {
	where := fmt.Sprintf("%s:%d", a.Range.Filename, a.Range.Start.Line)
	flags := fileFlags(daemon)
	i := slices.IndexFunc(flags, func(f cli.Flag) bool { return settingName(f.Names()[0]) == a.Name })
	if i < 0 {
		return setting{}, usageErrorf("%s: %s", where, unknownSetting(daemon, a.Name, flags))
	}
	v, diags := a.Expr.Value(nil)
	if diags.HasErrors() {
		return setting{}, diagnosticsError(diags)
	}
	text, err := flagValue(flags[i], v)
	if err != nil {
		return setting{}, usageErrorf("%s: %s: %v", where, a.Name, err)
	}
	return setting{flags[i].Names()[0], text, where}, nil
}

// unknownSetting names the nearest setting, or the other daemon where it is that one's.
func unknownSetting(daemon *cli.Command, name string, flags []cli.Flag) string {
	var names []string
	for _, f := range flags {
		names = append(names, settingName(f.Names()[0]))
	}
	text := fmt.Sprintf("no setting %q for the %s", name, daemon.Name)
	for _, other := range []*cli.Command{coordinatorCommand(), nodeCommand()} {
		if other.Name != daemon.Name && slices.ContainsFunc(fileFlags(other), func(f cli.Flag) bool { return settingName(f.Names()[0]) == name }) {
			return text + "; it is one of drover " + other.Name
		}
	}
	if s := jobspec.Suggest(name, names); s != "" {
		return text + fmt.Sprintf("; did you mean %q?", s)
	}
	return text + fmt.Sprintf("; `drover %s -h` lists them", daemon.Name)
}

// flagValue is a value of a file as the flag's parser takes it.
func flagValue(f cli.Flag, v cty.Value) (string, error) {
	if v.IsNull() {
		return "", errors.New("null is no value; leave the line out for the default")
	}
	switch f.(type) {
	case *cli.BoolFlag:
		if v.Type() != cty.Bool {
			return "", fmt.Errorf("want true or false, not %s", v.Type().FriendlyName())
		}
		return strconv.FormatBool(v.True()), nil
	case *cli.IntFlag, *cli.Float64Flag:
		if v.Type() != cty.Number {
			return "", fmt.Errorf("want a number, not %s", v.Type().FriendlyName())
		}
		n := v.AsBigFloat()
		if n.IsInf() || n.MantExp(nil) > 64 || n.MantExp(nil) < -64 { // to write it as text could take minutes
			return "", errors.New("the number is too large or too small")
		}
		if _, whole := f.(*cli.IntFlag); whole && !n.IsInt() {
			return "", fmt.Errorf("want a whole number, not %s", n.Text('g', 10))
		}
		return n.Text('f', -1), nil
	case *cli.DurationFlag:
		if v.Type() != cty.String {
			return "", errors.New(`want a duration as text, such as "15s" or "10m"`)
		}
		if _, err := time.ParseDuration(v.AsString()); err != nil {
			return "", fmt.Errorf(`%q is no duration; want one such as "15s" or "10m"`, v.AsString())
		}
		return v.AsString(), nil
	case *cli.StringFlag:
		if v.Type() != cty.String {
			return "", fmt.Errorf("want text in quotes, not %s", v.Type().FriendlyName())
		}
		return v.AsString(), nil
	case *cli.StringSliceFlag:
		list, err := textList(v)
		if err != nil {
			return "", err
		}
		return cli.NewStringSlice(list...).Serialize(), nil // as it stands: a comma separates nothing
	default:
		return "", fmt.Errorf("a flag of type %T cannot stand in a file", f)
	}
}

// textList reads a list of texts, or an object of texts as key=value.
func textList(v cty.Value) ([]string, error) {
	const want = `want a list of texts, such as ["a", "b"], or an object of texts, such as { key = "value" }`
	t := v.Type()
	if !t.IsTupleType() && !t.IsObjectType() {
		return nil, errors.New(want)
	}
	list := []string{}
	for it := v.ElementIterator(); it.Next(); {
		key, e := it.Element()
		if e.IsNull() || e.Type() != cty.String {
			return nil, errors.New(want)
		}
		if t.IsObjectType() {
			list = append(list, key.AsString()+"="+e.AsString())
		} else {
			list = append(list, e.AsString())
		}
	}
	return list, nil
}
