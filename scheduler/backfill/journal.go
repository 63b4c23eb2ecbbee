package backfill

import "github.com/drover-run/drover/scheduler"

// journal records the moves of a call, so that they can be undone.
type journal struct {
	log       []undo
	recording bool
}

type undo struct {
	item *item
	was  place
}

// rollback undoes the changes recorded since the undo log had n entries.
func (l *journal) rollback(p *Planner, n int) {
	for i := len(l.log) - 1; i >= n; i-- {
		u := &l.log[i]
		p.moveItem(u.item, u.was.spot, u.was.end, u.was.placed)
		u.item.searched = u.was.searched
	}
	l.log = l.log[:n]
}

func (l *journal) begin(p *Planner, now scheduler.Time) {
	l.log, l.recording, p.now = l.log[:0], true, now
}

func (l *journal) end() { l.log, l.recording = l.log[:0], false }
