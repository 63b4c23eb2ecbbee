// Package deadline implements PDSonQueue (3DSF section 7, Alg. 5) as queries on a State: in which order deadline jobs
// are served (EMWTF, which is least laxity first), how much slack each has, when it must preempt, and which attempts.
//
// All times returned are absolute and change only with events, so a policy that queries again without an event gets the
// same answer. Where an answer changes with time alone, that time is returned as well.
//
// The package changes nothing; the policies act. No type is safe for concurrent use.
package deadline
