// Package java embeds the Java side of the test bed: the list of Apache HDFS jars and a small
// program that runs a NameNode, DataNodes or both in a JVM; and a word count for Hadoop's MapReduce, the
// peer of a benchmark, with the jars that it needs. Package build compiles them.
package java

import "embed"

// Sources are the pom, the Java sources and the log settings.
//
//go:embed pom.xml *.java log4j.properties
var Sources embed.FS

// MapReduce has the pom and the source of the word count, in the folder mapreduce.
//
//go:embed mapreduce/pom.xml mapreduce/*.java
var MapReduce embed.FS
