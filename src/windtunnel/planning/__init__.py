"""Plans: search how to divide a job among the devices of a machine, and how many of them to use.

| file          | what it has                                                                     |
|---------------|---------------------------------------------------------------------------------|
| `goal`        | what a plan is for: aim, deadline, budget, length of the run                    |
| `candidates`  | one way to run the job, and all candidates on a number of devices                     |
| `facts`       | what bounds every plan of a job: memory that it must hold, arithmetic at best   |
| `bounds`      | what a step takes at least, which candidate needs more memory than another            |
| `search`      | for each number of devices, plans that fit in the order of their time           |
| `run`         | the whole run: steps, time, cost                                                |
| `table`       | the result: the best plans, the scaling curve, what was refused; prints itself  |
| `plan`        | the public function                                                             |

The search has no formula for the time of a step: each plan is forecast by `forecast/parallel.py`. Lower
bounds only decide what need not be forecast.
"""
