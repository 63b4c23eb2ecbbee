// Package lasmq is the multilevel queue of LAS_MQ (Low Latency Big Data
// Processing without Prior Information, section 3, Alg. 1-2): jobs start in the
// first queue and are demoted as they have had more service than its threshold;
// queues share by weights, a queue serves its jobs one after the other.
//
// It decides nothing by itself. Policy las_mq uses it over all jobs, 3dsf over
// the jobs of one tenant (Queues: which job is next), and a fluid model asks
// for levels and rates (Config.Level, Config.Rates). What has to be remembered
// between cycles (a job's queue, a queue's deficit) comes in and goes out as
// values; the caller keeps it in notes.
//
// Service is in container-seconds: containers x time (eq. 6), a container being
// max over the resources of demand/unit.
package lasmq
