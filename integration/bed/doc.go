// Package bed is how end-to-end tests use the test bed: real machines with containerd and a real Apache HDFS, in
// one private network that the command `bed run` (integration/cmd/bed) puts up around them.
//
// A test asks for the bed that it runs in, and skips with the reason when there is none:
//
//	func TestWordcount(t *testing.T) {
//		b, err := bed.FromEnv()
//		if err != nil {
//			t.Skip(err)
//		}
//		n := b.Nodes[0]
//		r, err := n.Exec(ctx, "ctr", "version")
//		...
//		b.HDFS.StopDataNode(ctx, 2)
//	}
//
// and is run with
//
//	go run ./integration/cmd/bed run -hdfs -- go test ./integration/...
//
// Everything takes a context and gives up when it ends. What a test changes (a killed machine, a stopped DataNode)
// stays changed for the tests after it: put it back, or ask for a bed of your own. A machine that was killed
// cannot come back within one bed.
//
// The package does not build or start anything; it only talks to a bed that runs.
package bed
