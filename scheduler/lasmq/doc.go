// Package lasmq implements the multilevel queue of LAS_MQ (Low Latency Big Data Processing without Prior Information,
// section 3, Alg. 1-2): jobs start in the first queue and are demoted once their service exceeds its threshold; queues
// share by weight, and a queue serves its jobs in order.
//
// The package decides nothing. Policy las_mq uses it over all jobs and 3dsf over the jobs of one
// tenant (Queues). Values that must survive a cycle (a job's queue, a queue's deficit) are passed
// in and out; the caller stores them in policy states.
//
// Service is in container-seconds: containers x time (eq. 6). A demand's containers are the maximum over the resources
// of demand/unit.
package lasmq
