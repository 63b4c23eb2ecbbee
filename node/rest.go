package node

// An ended attempt stays until the coordinator no longer wants it, for its output or for
// inspection. It rests without a goroutine: a node that ran 100,000 map tasks of one job would have
// 100,000 of them.

// startLoop starts the attempt's loop. It is called once by launch, and by
// wakeUp for an attempt that rests.
func (a *attempt) startLoop() {
	a.d.wg.Go(func() {
		a.looping.Lock() // the loop before has left, its watchers included
		defer a.looping.Unlock()
		a.loop(a.d.runCtx)
	})
}

// tryRest makes the attempt rest, without a loop, if it has ended, nothing of it is in progress,
// and nothing changed since the loop last looked. It then clears the failure counts of its steps.
// Otherwise it returns false. The next wakeUp starts the loop again.
func (a *attempt) tryRest() bool {
	if len(a.rec.End) == 0 || a.container.awaitingExit || a.helpers.isBusy() || !a.mail.tryRest() {
		return false
	}
	a.retries.clearAll()
	return true
}
