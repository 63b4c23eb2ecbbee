// Command exported lists the exported functions, types, methods, fields, constants and variables
// that no other package uses. make lint rejects them, because others may rely on everything that a
// package exports.
//
// A use is a mention in another folder or in an external test (package x_test). These also count as
// used:
//
//   - types that the signature of a used object mentions, and all constants of such a type;
//   - interfaces that a type of another package implements;
//   - methods that an interface requires, and the methods of interfaces;
//   - methods and fields that a template of the package names;
//   - embedded fields, the fields of a struct that has a tag on any field, and the fields of values
//     that are passed as any except for printing: encoders read these fields by name.
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
