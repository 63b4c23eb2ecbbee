// Package deadline is the judgment of PDSonQueue (3DSF section 7, Alg. 5) on a
// State: in which order deadline jobs are served (EMWTF), how long each may
// still wait, when it must take room from others, and from whom.
//
// Every instant it gives is absolute and changes by events only, so that a
// policy that asks again without an event decides the same; where an answer
// turns with time alone, that instant is given too.
//
// It decides nothing and changes nothing. Nothing here is safe for concurrent
// use.
package deadline
