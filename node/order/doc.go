// Package order does the work on file systems that the coordinator asks of a
// node: where blocks are, whether an output path is free, publishing a result,
// deleting. The coordinator holds no credentials and waits for no NameNode; it
// writes the order down and asks a node, or after that one's loss another.
//
// So every order is safe to repeat and to carry out twice at once, each has a
// limit, and while it waits it says for what and how long. An order is answered
// once; asked again after that, it is answered from memory or done again.
package order
