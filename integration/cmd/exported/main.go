// Command exported lists the exported functions, types, methods, fields, constants and variables that no
// other package uses. make lint refuses them: what a package shows is what others may rely on.
//
// A use is a mention in another folder or in an external test (package x_test). Counted as used, too:
//
//   - types that the signature of something used shows, and all constants of such a type;
//   - interfaces that a type of another package implements;
//   - methods that an interface asks for, and the methods of interfaces;
//   - methods and fields that a template of the package names;
//   - embedded fields, the fields of a struct of which one has a tag, and those of values that are passed as
//     any, but for printing: encoders read them by name.
package main

import (
	"fmt"
	"os"
)

func main() {
	unused, err := find(".", "./...")
	if err != nil {
		fmt.Fprintln(os.Stderr, "exported:", err)
		os.Exit(1)
	}
	for _, f := range unused {
		fmt.Println(f)
	}
	if len(unused) > 0 {
		os.Exit(1)
	}
}
