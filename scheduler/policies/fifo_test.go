package policies

import (
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

func TestFifoPlacesInOrderOfSubmission(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a")
	w.Submit("a", 3, schedtest.R(2, 2, 10))
	w.Submit("a", 5, schedtest.R(3, 1, 10))
	w.Submit("a", 5, schedtest.R(2, 1, 10))
	p, err := New("fifo", nil)
	if err != nil {
		t.Fatal(err)
	}
	d := w.Cycle(p)
	want := "place 1.0.0#1 run 1 on 0 disk 0\nplace 1.0.1#1 run 1 on 0 disk 0\nplace 1.0.2#1 run 1 on 1 disk 0\n" +
		"place 3.0.0#1 run 1 on 1 disk 0\n2.0: 5 waiting, no free cpu on 2 nodes\n3.0: 4 waiting, no free cpu on 2 nodes\n"
	if got := d.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if d := w.Cycle(p); !d.Empty() {
		t.Errorf("second cycle without an event: %v", d.String())
	}
	strict, _ := New("fifo", map[string]string{"strict": "true"})
	for _, a := range w.Attempts() {
		if a.ID.Job == 3 {
			w.End(a, scheduler.OutcomeKilled)
		}
	}
	if d := w.Cycle(strict); len(d.Actions) != 0 || d.Waiting[1].Reason != scheduler.ReasonHeadOfLine {
		t.Errorf("strict: %s", d.String())
	}
}

func TestUnknownNamesGetSuggestions(t *testing.T) {
	for name, c := range map[string]struct {
		policy string
		params map[string]string
		want   string
	}{
		"a typo in the name":      {"fiffo", nil, `unknown scheduler "fiffo": did you mean "fifo"?`},
		"a typo in a parameter":   {"fifo", map[string]string{"strikt": "true"}, `scheduler "fifo": unknown parameter "strikt": did you mean "strict"?`},
		"a value of another kind": {"fifo", map[string]string{"strict": "yes"}, `scheduler "fifo": parameter "strict" is "yes": want true or false`},
		"a word for a number":     {"drf", map[string]string{"lev": "two"}, `scheduler "drf": parameter "lev" is "two": want a whole number such as 3`},
		"no unit":                 {"3dsf", map[string]string{"aging": "5"}, `scheduler "3dsf": parameter "aging" is "5": want a duration such as 90s, 15m or 2h`},
		"no such choice":          {"3dsf", map[string]string{"order": "random"}, `scheduler "3dsf": parameter "order" is "random": want one of emwtf, edf`},
	} {
		if _, err := New(c.policy, c.params); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}
