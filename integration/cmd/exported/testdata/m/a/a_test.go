package a_test

import "example.org/m/a"

func test(u *a.Used) { u.Tested() }

var _ = test
