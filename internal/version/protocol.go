package version

import "github.com/drover-run/drover/internal/fault"

// Protocol is the version of the messages between the programs of a cluster: between nodes and
// coordinator, and among coordinators. It grows by one with each change that the previous version
// would misread. A program supports its own protocol and the previous one, so that a cluster works
// while it is upgraded machine by machine.
//
// 0 is the version of builds from before the handshake, because they do not know the field.
const Protocol uint32 = 1

// CheckProtocol returns fault.Unsupported unless this program works with a program whose protocol
// is theirs. us and them name the two in the error, which users of both sides read.
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
