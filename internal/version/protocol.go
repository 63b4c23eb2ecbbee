package version

import "github.com/drover-run/drover/internal/fault"

// Protocol numbers what the programs of a cluster say to each other: nodes to their
// coordinator, and coordinators among themselves. It grows by one with each change
// that the program before would misread. A program supports its own protocol and the
// one before, so that a cluster works while it is upgraded machine by machine.
//
// 0 is what builds from before the handshake say, since they do not know the field.
const Protocol uint32 = 1

// CheckProtocol returns fault.Unsupported unless this program works with one that
// has the protocol theirs. us and them name the two in the error, which is read on
// both sides.
func CheckProtocol(us, them string, theirs uint32) error {
	return checkProtocol(us, Protocol, them, theirs)
}

func checkProtocol(us string, ours uint32, them string, theirs uint32) error {
	older := us
	if ours > theirs {
		older = them
	}
	if max(ours, theirs)-min(ours, theirs) <= 1 {
		return nil
	}
	return fault.New(fault.Unsupported, "%s has protocol %d and %s %d, and only neighbours work together: upgrade %s", them, theirs, us, ours, older)
}
