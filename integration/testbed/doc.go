// Package testbed lets end-to-end tests use the test bed: virtual machines with containerd and a
// real Apache HDFS in one private network, which the command `testbed run`
// (integration/cmd/testbed) starts around them.
//
// A test obtains the test bed that it runs in, or skips with the reason if there is none:
//
//	func TestWordcount(t *testing.T) {
//		b, err := testbed.FromEnv()
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
//	go run ./integration/cmd/testbed run -hdfs -- go test ./integration/...
//
// Every function takes a context and returns when it ends. Changes that a test makes (a killed
// machine, a stopped DataNode) affect the tests after it: revert them, or use a test bed of your
// own. A killed machine cannot be restarted within one test bed; Reset cuts the power for a moment.
//
// The package neither builds nor starts anything; it only talks to a running test bed.
package testbed
