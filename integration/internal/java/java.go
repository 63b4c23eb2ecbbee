// Package java embeds the Java side of the test bed: the list of Apache HDFS jars and a small
// program that runs a NameNode, DataNodes or both in a JVM. Package build compiles it.
package java

import "embed"

// Sources are the pom, the Java sources and the log settings.
//
//go:embed pom.xml *.java log4j.properties
var Sources embed.FS
