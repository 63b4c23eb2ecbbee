// Package build makes all slow prerequisites of the test bed once and keeps them in the cache: the
// jars of Apache HDFS, the guest's root file system and kernel, the saved RAM of a booted machine,
// container images, and real text. It also lists and installs the required packages of the host.
//
// The package does not run a test bed; package run does, with the entries that this package
// returns.
package build
