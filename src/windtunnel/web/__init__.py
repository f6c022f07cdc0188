"""The page: forecasts, machines, networks, studies and accuracy in a browser. `windtunnel serve` starts it.

state         what a link holds: a job, machines and a strategy, read strictly from a query string
allowed       which jobs a browser may name
worker_pool   the workers, their queues, and the answers that are kept
worker        a worker process: answers one question at a time, within limits
worker_cache  the jobs and traces of a worker, kept in memory and on disk
security      which requests are answered, and the headers of every answer
app           the routes; `pages/` has one file for each kind of page
"""
