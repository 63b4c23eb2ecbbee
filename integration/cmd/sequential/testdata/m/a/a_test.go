package a

import "testing"

func TestA(*testing.T) {}
