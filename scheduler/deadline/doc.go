// Package deadline implements PDSonQueue (3DSF section 7, Alg. 5) as queries on a State: the order
// of deadline jobs (EMWTF, which is least laxity first), the slack of each, when it must preempt,
// and which attempts.
// All times returned are absolute and change only with events, so a policy that queries again without an event gets the
// All times returned are absolute and change only with events, so a policy that queries again without
// an event gets the same answer. If an answer changes with time alone, that time is returned too.
// The package changes nothing; the policies act. No type is safe for concurrent use.
package deadline
