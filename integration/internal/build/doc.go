// Package build makes all that the test bed needs and that takes long, each thing once, in the cache: the jars of
// Apache HDFS, the guest's root file system and kernel, the saved RAM of a booted machine, container images, and
// real text. It also lists and installs the packages of the host that this takes.
//
// Nothing here runs a bed; package run does, with the entries that this package returns.
package build
