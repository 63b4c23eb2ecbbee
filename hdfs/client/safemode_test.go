package client_test

import (
	"testing"

	"github.com/drover-run/drover/hdfs/client"
)

// A real NameNode answers the query, also to a user without privileges.
func TestInSafeMode(t *testing.T) {
	c, err := client.New(client.Options{NameNodes: []string{nameNode(t)}, User: "nobody"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if safe, err := c.InSafeMode(t.Context()); err != nil || safe {
		t.Errorf("in safe mode: %v, %v", safe, err)
	}
}
