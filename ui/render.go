package ui

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/apitext"
	"github.com/drover-run/drover/jobspec"
)

//go:embed templates
var templateFiles embed.FS

// templates returns a set for each page: layout.html with what the page defines. The sets are
// parsed at the first call, since every start of the command line would pay for it.
var templates = sync.OnceValue(func() map[string]*template.Template {
	return parseTemplates("cluster", "node", "jobs", "job", "task", "logs", "schedule", "tenants", "scheduler", "events", "error")
})

func parseTemplates(names ...string) map[string]*template.Template {
	out := map[string]*template.Template{}
	for _, n := range names {
		t := template.New(n).Funcs(helpers)
		out[n] = template.Must(t.ParseFS(templateFiles, "templates/layout.html", "templates/parts.html", "templates/"+n+".html"))
	}
	return out
}

// frame is what the layout shows around every page.
type frame struct {
	*view
	Pages   []navEntry
	Address string                   // of this page
	Status  *droverv1.StatusResponse // nil: the coordinator does not answer
	Main    template.HTML
	Digest  string
	SignOut bool // the reader signed in with a token
}

// renderPage writes a whole page. signedIn: with a token, so that the reader can sign out.
func (q *query) renderPage(w io.Writer, v *view, address string, signedIn bool) error {
	var b strings.Builder
	if err := q.renderMain(&b, v); err != nil {
		return err
	}
	f := &frame{view: v, Pages: navigation, Address: address, Main: template.HTML(b.String()), Digest: digest([]byte(b.String())), SignOut: signedIn}
	f.Status, _ = q.status() // a page without its frame's details is better than none
	return templates()[v.Template].ExecuteTemplate(w, "layout", f)
}

// navEntry is a page of the navigation.
type navEntry struct{ Name, Address string }

var navigation = []navEntry{{"Cluster", "/"}, {"Jobs", "/jobs"}, {"Schedule", "/schedule"}, {"Tenants", "/tenants"}, {"Scheduler", "/scheduler"}, {"Events", "/events"}}

// mainPart is what the main part of a page gets.
type mainPart struct {
	Token string
	Data  any
}

// renderMain writes the part of a page that is kept live.
func (q *query) renderMain(w io.Writer, v *view) error {
	return templates()[v.Template].ExecuteTemplate(w, "main", &mainPart{Token: q.token, Data: v.Data})
}

var helpers = template.FuncMap{
	"static":   staticURL,
	"time":     timeTag,
	"ago":      agoTag,
	"duration": durationText,
	"cpu":      cpuText,
	"size":     sizeText,
	"rate":     func(b int64) string { return jobspec.FormatRate(b) },
	"count":    countText,
	"percent":  percentText,
	"bar":      barTag,
	"state":    apitext.JobState,
	"level":    levelText,
	"address":  address,
	"plural":   plural,
	"short":    func(s string) string { return s[:min(len(s), 8)] },
	"micros":   microsText,
	"share":    shareTag,
	"form":     func(token string, pairs ...any) *form { return newForm(token, pairs) },
}

// timeTag shows a time; the script shows it in the reader's zone.
func timeTag(ms int64) template.HTML { return timeElement(ms, "") }

// agoTag shows how long ago a time is, or how far ahead.
func agoTag(ms int64) template.HTML { return timeElement(ms, "ago") }

func timeElement(ms int64, as string) template.HTML {
	if ms <= 0 {
		return `<span class="none">–</span>`
	}
	t := time.UnixMilli(ms).UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s" data-as="%s" title="%s">%s</time>`, t.Format(time.RFC3339), as, t.Format("2006-01-02 15:04:05 UTC"), t.Format("2 Jan 15:04:05 UTC")))
}

// durationText formats milliseconds with two units at most.
func durationText(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case ms <= 0:
		return "0 s"
	case d < time.Second:
		return fmt.Sprintf("%d ms", ms)
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d d %02d h", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// cpuText formats millicores in cores.
func cpuText(m int64) string {
	if m%1000 == 0 || m >= 100_000 {
		return countText(m/1000) + " cores"
	}
	if m > 0 && m < 10 {
		return "< 0.01 cores"
	}
	return strings.TrimRight(strconv.FormatFloat(float64(m)/1000, 'f', 2, 64), "0") + " cores"
}

// sizeText formats bytes.
func sizeText(b int64) string {
	v, names := float64(b), []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for math.Abs(v) >= 1024 && i < len(names)-1 {
		v, i = v/1024, i+1
	}
	digits := 0
	if math.Abs(v) < 10 && i > 0 {
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + names[i]
}

// microsText formats microseconds.
func microsText(us int64) string {
	switch {
	case us < 1000:
		return strconv.FormatInt(us, 10) + " µs"
	case us < 1_000_000:
		return strconv.FormatFloat(float64(us)/1000, 'f', 1, 64) + " ms"
	default:
		return durationText(us / 1000)
	}
}

// countText formats a number with thin spaces between thousands.
func countText(v any) string {
	var n int64
	switch v := v.(type) {
	case int:
		n = int64(v)
	case int32:
		n = int64(v)
	case int64:
		n = v
	case uint64:
		n = int64(v)
	}
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

func percentText(part float64) string {
	switch p := part * 100; {
	case math.IsNaN(p) || math.IsInf(p, 0):
		return "–"
	case p > 0 && p < 0.1:
		return "< 0.1\u00a0%"
	case p < 10 && p != math.Trunc(p):
		return strconv.FormatFloat(p, 'f', 1, 64) + "\u00a0%"
	default:
		return strconv.FormatFloat(p, 'f', 0, 64) + "\u00a0%"
	}
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return countText(n) + " " + many
}

// barTag draws parts of one as a bar, each with the class of the same place.
// A table or text beside it has the numbers.
func barTag(classes string, parts ...float64) template.HTML {
	var b strings.Builder
	b.WriteString(`<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true"><rect class="rest" width="1000" height="10"/>`)
	x := 0.0
	for i, class := range strings.Fields(classes) {
		if i >= len(parts) || math.IsNaN(parts[i]) {
			break
		}
		w := min(max(parts[i], 0)*1000, 1000-x)
		if w > 0 {
			fmt.Fprintf(&b, `<rect class="%s" x="%.0f" width="%.0f" height="10"/>`, class, x, max(w, 4))
		}
		x += w
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

func levelText(l droverv1.Level) string {
	return strings.ToLower(strings.TrimPrefix(l.String(), "LEVEL_"))
}

// address joins the segments of a path, escaped.
func address(segments ...any) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(fmt.Sprint(s)))
	}
	return b.String()
}

// form is a button that does something.
type form struct {
	Token, Action, Label, Confirm string
	Danger                        bool
	Fields                        []field
}

type field struct{ Name, Value string }

// newForm returns a form: pairs are action, label, and names with values; the
// names "confirm" and "danger" are about the button itself.
func newForm(token string, pairs []any) *form {
	f := &form{Token: token}
	for i := 0; i+1 < len(pairs); i += 2 {
		name, value := fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1])
		switch name {
		case "action":
			f.Action = value
		case "label":
			f.Label = value
		case "confirm":
			f.Confirm = value
		case "danger":
			f.Danger = true
		default:
			f.Fields = append(f.Fields, field{name, value})
		}
	}
	return f
}
