package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/apitext"
	"github.com/drover-run/drover/internal/plain"
	"github.com/drover-run/drover/jobspec"
)

// output is a command's standard output. It remembers the first error, so that a command whose output
// is lost, as on a full disk, does not end as if it had succeeded: few look at what printing returns.
type output struct {
	w io.Writer

	mu  sync.Mutex
	err error
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.err == nil {
			o.err = err
		}
	}
	return n, err
}

// lost returns an error if something could not be written.
func (o *output) lost() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("the output is incomplete: %w", o.err)
}

// jsonFlag belongs to every command that shows something.
var jsonFlag = &cli.BoolFlag{Name: "json", Usage: "one JSON object, for programs"}

// printProto prints a message as JSON with every field, including zero values.
func printProto(w io.Writer, m proto.Message) error {
	b, err := protojson.MarshalOptions{EmitUnpopulated: true, UseProtoNames: true}.Marshal(m)
	if err != nil {
		return err
	}
	v, err := withNumbers(b, m.ProtoReflect().Descriptor())
	if err != nil {
		return err
	}
	return printJSON(w, v)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// printTable prints a plain table without borders.
func printTable(w io.Writer, header []string, rows [][]string) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.Style{Name: "plain", Box: table.BoxStyle{PaddingRight: "  "}, Options: table.OptionsNoBordersAndSeparators, Format: table.FormatOptions{Header: text.FormatUpper}})
	row := func(cells []string) table.Row {
		r := make(table.Row, len(cells))
		for i, c := range cells {
			if c == "" {
				c = "-"
			}
			r[i] = plain.Line(c)
		}
		return r
	}
	t.AppendHeader(row(header))
	for _, r := range rows {
		t.AppendRow(row(r))
	}
	t.SuppressTrailingSpaces()
	t.Render()
}

// printPairs prints "name  value" lines and omits empty values.
func printPairs(w io.Writer, kv ...string) {
	wide := 0
	for i := 0; i+1 < len(kv); i += 2 {
		if kv[i+1] != "" {
			wide = max(wide, len(kv[i]))
		}
	}
	for i := 0; i+1 < len(kv); i += 2 {
		if kv[i+1] != "" {
			fmt.Fprintf(w, "%-*s  %s\n", wide, kv[i], plain.Line(kv[i+1]))
		}
	}
}

// countText formats a number with its noun: "1 stage", "2 stages".
func countText(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// withThousands formats a number with thousands separators.
func withThousands(n int64) string {
	s := fmt.Sprint(n)
	for at := len(s) - 3; at > 0 && s[at-1] != '-'; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

func phaseText(p droverv1.Phase) string {
	return strings.ToLower(strings.TrimPrefix(p.String(), "PHASE_"))
}

func causeText(c droverv1.Cause) string {
	if c == droverv1.Cause_CAUSE_UNSPECIFIED {
		return ""
	}
	return apitext.Cause(c)
}

func levelText(l droverv1.Level) string {
	if l == droverv1.Level_LEVEL_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(l.String(), "LEVEL_"))
}

// vectorText formats CPU, memory and I/O for people.
func vectorText(r *droverv1.Resources) string {
	if r == nil {
		return "-"
	}
	return fmt.Sprintf("%s cpu, %s, %s", jobspec.FormatCPU(r.Cpu), jobspec.FormatSize(r.Memory), jobspec.FormatRate(r.Io))
}

func unixMSText(ms int64) string {
	if ms <= 0 {
		return ""
	}
	return time.UnixMilli(ms).Format("2006-01-02 15:04:05")
}

// durationText formats a duration with about three significant digits.
func durationText(d time.Duration) string {
	switch {
	case d < 0:
		return ""
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}
