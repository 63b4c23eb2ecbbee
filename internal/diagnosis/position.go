package diagnosis

import (
	"fmt"

	"github.com/drover-run/drover/internal/fault"
)

// position is a place in a daemon's log. A caller may pass it to another daemon, for example to the
// next leading coordinator. Then only the time of the position counts.
type position struct {
	instance uint64
	sequence uint64
	atUS     int64
}

// String returns the form that callers receive.
func (p position) String() string { return fmt.Sprintf("%x-%x-%x", p.instance, p.sequence, p.atUS) }

func parsePosition(text string) (p position, err error) {
	if n, err := fmt.Sscanf(text, "%x-%x-%x", &p.instance, &p.sequence, &p.atUS); err != nil || n < 3 {
		return position{}, fault.New(fault.Invalid, "position %q: give one that a record had", text)
	}
	return p, nil
}

// before reports whether record r, of the log with this instance, comes after p.
func (p position) before(r record, instance uint64) bool {
	if p.instance == instance {
		return r.sequence > p.sequence
	}
	return r.AtUs > p.atUS
}
