package scheduler

// MaxExplained is about how many waiting stages one decision explains.
const MaxExplained = 1 << 12

// WaitingRound selects the waiting stages that a decision explains: all, or a part of about
// MaxExplained, where the next decision continues. Each part includes the newest job, since its
// user and a dry run look at it first. It is a cache: without it a round begins again.
type WaitingRound struct {
	// Continues and More are Decision.WaitingContinues and Decision.WaitingMore of the last call.
	Continues, More bool
	// Unfinished reports that some reasons are missing, or older than the last change.
	Unfinished bool

	at    int32 // position in the queue where the next part begins, if More
	began Stamp // of the State when the round began
}

// Next calls explain for each ready stage of the next part, about most stages, in the queue's order. now is the stamp
// at the start of the decision. If jobs left the queue meanwhile, a part may leave some stages to the next round.
func (r *WaitingRound) Next(q Queue, now Stamp, most int, explain func(*Stage)) {
	left, from := most, int32(0)
	if q.Ready() > most && r.More {
		from = r.at
	}
	if r.Continues = from > 0; !r.Continues {
		r.began = now
	}
	j, at := q.Next(from)
	for ; j != nil && left > 0; j, at = q.Next(at) {
		left -= j.explainReady(explain)
	}
	if r.More = j != nil; r.More {
		r.at = j.rank
	}
	r.Unfinished = r.More || r.began != now
	if all := q.s.order.jobs; len(all) > 0 && (r.More || all[len(all)-1].rank < from) {
		all[len(all)-1].explainReady(explain)
	}
}

// explainReady calls explain for each ready stage of a job and returns how many there are.
func (j *Job) explainReady(explain func(*Stage)) (n int) {
	for _, g := range j.Stages {
		if g.Ready() {
			explain(g)
			n++
		}
	}
	return n
}
